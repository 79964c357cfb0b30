//! `--output-csv`: the figures of a test run in files of comma-separated values, and `--help-output`, which explains them.

use super::format_g;
use std::fmt::Write;
use std::fs;
use std::io;

/// What `--help-output` prints.
pub(in crate::cmd::crushtool) const HELP: &str = "\
data output from testing routine ...
           absolute_weights
                  the decimal weight of each OSD
                  data layout: ROW MAJOR
                               OSD id (int), weight (int)
           batch_device_expected_utilization_all
                  the expected number of objects each OSD should receive per placement batch
                  which may be a decimal value
                  data layout: COLUMN MAJOR
                               round (int), objects expected on OSD 0...OSD n (float)
           batch_device_utilization_all
                  the number of objects stored on each OSD during each placement round
                  data layout: COLUMN MAJOR
                               round (int), objects stored on OSD 0...OSD n (int)
           device_utilization_all
                  the number of objects stored on each OSD at the end of placements
                  data_layout: ROW MAJOR
                               OSD id (int), objects stored (int), objects expected (float)
           device_utilization
                  the number of objects stored on each OSD marked 'up' at the end of placements
                  data_layout: ROW MAJOR
                               OSD id (int), objects stored (int), objects expected (float)
           placement_information
                  the map of input -> OSD
                  data_layout: ROW MAJOR
                               input (int), OSD's mapped (int)
           proportional_weights_all
                  the proportional weight of each OSD specified in the CRUSH map
                  data_layout: ROW MAJOR
                               OSD id (int), proportional weight (float)
           proportional_weights
                  the proportional weight of each 'up' OSD specified in the CRUSH map
                  data_layout: ROW MAJOR
                               OSD id (int), proportional weight (float)
";

/// The figures for one rule and one number of replicas.
pub(super) struct PlacementTables<'a> {
    /// By device, in 16.16 format.
    pub(super) weights: &'a [u32],
    /// Share of the total weight, by device.
    pub(super) shares: &'a [f32],
    /// Objects by device.
    pub(super) stored: &'a [u64],
    /// Expected objects by device, according to the weights.
    pub(super) expected: &'a [f32],
    /// For each batch the objects by device. Not written if there is only one batch.
    pub(super) batches: &'a [Vec<u64>],
    /// Inputs and the devices that they were mapped to.
    pub(super) placements: &'a [(i64, Vec<i32>)],
    /// Number of replicas from `--num-rep`, or negative without it.
    pub(super) replicas: i64,
}

impl PlacementTables<'_> {
    /// Writes `PREFIX-FIGURE.csv` for each figure. Overwrites the files of an earlier number of replicas.
    pub(super) fn write(&self, prefix: &str) -> io::Result<()> {
        let file = |name: &str, text: String| fs::write(format!("{prefix}-{name}.csv"), text);
        let by_device = |head: &str, rows: &mut dyn Iterator<Item = (usize, String)>| {
            rows.fold(format!("{head}\n"), |mut text, (device, row)| {
                let _ = writeln!(text, "{device},{row}");
                text
            })
        };
        let number = |figure: &f32| format_g(f64::from(*figure));

        let mut absolute =
            self.weights.iter().map(|weight| format_g(f64::from(*weight) / 65_536.0)).enumerate();
        file("absolute_weights", by_device("Device ID, Absolute Weight", &mut absolute))?;

        let share = "Device ID, Proportional Weight";
        let shares = || self.shares.iter().enumerate();
        let is_up = |(device, _): &(usize, &f32)| self.weights[*device] > 0;
        let up = &mut shares().filter(is_up).map(|(device, share)| (device, number(share)));
        file("proportional_weights", by_device(share, up))?;
        let all = &mut shares().map(|(device, share)| (device, number(share)));
        file("proportional_weights_all", by_device(share, all))?;

        let utilization = "Device ID, Number of Objects Stored, Number of Objects Expected";
        let row = |(device, (stored, expected)): (usize, (&u64, &f32))| {
            (device, format!("{stored},{}", number(expected)))
        };
        let devices = || self.stored.iter().zip(self.expected).enumerate();
        let used = || devices().filter(|(_, (stored, expected))| **stored > 0 && **expected > 0.0);
        file("device_utilization", by_device(utilization, &mut used().map(row)))?;
        file("device_utilization_all", by_device(utilization, &mut devices().map(row)))?;

        let mut placements = "Input".to_owned();
        for column in 0..self.replicas.max(0) {
            let _ = write!(placements, ", OSD{column}");
        }
        placements.push('\n');
        for (input, devices) in self.placements {
            let _ = write!(placements, "{input}");
            devices.iter().for_each(|device| {
                let _ = write!(placements, ",{device}");
            });
            placements.push('\n');
        }
        file("placement_information", placements)?;

        if self.batches.len() > 1 {
            // crushtool writes the stored objects into the file of the expected ones, too.
            for (name, what) in [
                ("batch_device_expected_utilization_all", "Expected"),
                ("batch_device_utilization_all", "Stored"),
            ] {
                let mut text = "Batch Round".to_owned();
                for column in 0..used().count() {
                    let _ = write!(text, ", Objects {what} on OSD{column}");
                }
                text.push('\n');
                for (round, stored) in self.batches.iter().enumerate() {
                    let counts: Vec<String> = stored.iter().map(u64::to_string).collect();
                    let _ = writeln!(text, "{round},{}", counts.join(","));
                }
                file(name, text)?;
            }
        }
        Ok(())
    }
}
