//! Constructed histories: those that break a guarantee must be refused.

use super::history::{CELL, History, Kind, Number, Outcome};

/// Operations on one object, each of which lasts one time unit, and reads of the whole of it.
struct Scene {
    history: History,
    now: u64,
}

impl Scene {
    fn new() -> Scene {
        Scene { history: History::default(), now: 0 }
    }

    fn begin(&mut self, kind: Kind) -> Number {
        self.now += 10;
        self.history.begin(self.now, 0, 0, kind)
    }

    fn end(&mut self, number: Number, outcome: Outcome) {
        self.now += 10;
        self.history.end(self.now, number, outcome);
    }

    fn done(&mut self, kind: Kind) -> Number {
        let number = self.begin(kind);
        self.end(number, Outcome::Done);
        number
    }

    /// A read that saw these cells; `None` for no object.
    fn read(&mut self, cells: Option<&[u64]>) -> Option<&'static str> {
        let data: Option<Vec<u8>> =
            cells.map(|cells| cells.iter().flat_map(|cell| cell.to_le_bytes()).collect());
        let begun = self.now + 1;
        self.now += 10;
        self.history.read((begun, self.now), 0, (0, 1 << 21), data.as_deref());
        self.history.broken.as_ref().map(|broken| broken.rule)
    }
}

const LOST: Option<&str> = Some("an acknowledged write to a striped object is lost");
const BACK: Option<&str> = Some("striped data comes back");

#[test]
fn what_was_written_is_read() {
    let mut scene = Scene::new();
    let (first, second) = (scene.done(Kind::Write(1, 2)), scene.done(Kind::Write(2, 1)));
    assert_eq!(scene.read(Some(&[0, first.cell(0), second.cell(0)])), None);
    assert_eq!(scene.read(Some(&[0, first.cell(0)])), LOST);
}

#[test]
fn absent_objects_were_removed() {
    let mut scene = Scene::new();
    scene.done(Kind::Write(0, 1));
    let removal = scene.begin(Kind::Remove);
    assert_eq!(scene.read(None), None);
    scene.end(removal, Outcome::Done);
    scene.done(Kind::Write(0, 1));
    assert_eq!(scene.read(None), LOST);
}

#[test]
fn a_truncation_explains_a_hole_but_no_absence() {
    for (cells, rule) in [(Some(&[][..]), None), (None, LOST)] {
        let mut scene = Scene::new();
        scene.done(Kind::Write(3, 2));
        scene.done(Kind::Truncate(0));
        assert_eq!(scene.read(cells), rule);
    }
}

#[test]
fn data_that_was_overwritten_or_cut_does_not_come_back() {
    for over in [Kind::Write(0, 4), Kind::Truncate(1), Kind::Remove, Kind::WriteFull(1)] {
        let mut scene = Scene::new();
        let old = scene.done(Kind::Write(2, 1));
        let over = scene.begin(over);
        assert_eq!(scene.read(Some(&[0, 0, old.cell(0)])), None);
        scene.end(over, Outcome::Done);
        assert_eq!(scene.read(Some(&[0, 0, old.cell(0)])), BACK, "{over:?}");
    }
}

#[test]
fn what_a_dead_process_wrote_ends_with_a_removal_only() {
    for (cut, rule) in [(Kind::Remove, BACK), (Kind::Truncate(0), None)] {
        let mut scene = Scene::new();
        let write = scene.begin(Kind::Write(0, 1));
        scene.now += 10;
        scene.history.process_died(0);
        assert_eq!(scene.read(Some(&[write.cell(0)])), None);
        scene.done(cut);
        assert_eq!(scene.read(Some(&[write.cell(0)])), rule);
    }
}

#[test]
fn appends_have_one_place_each() {
    let mut scene = Scene::new();
    let (first, second) = (scene.done(Kind::Append(2)), scene.done(Kind::Append(1)));
    assert_eq!(scene.read(Some(&[first.cell(0), first.cell(1), second.cell(0)])), None);
    assert_eq!(
        scene.read(Some(&[first.cell(0), first.cell(1), 0, second.cell(0)])),
        Some("striped data is in another place")
    );

    let mut scene = Scene::new();
    let (first, second) = (scene.done(Kind::Append(2)), scene.done(Kind::Append(1)));
    assert_eq!(scene.read(Some(&[first.cell(0), second.cell(0)])), Some("two appends overlap"));

    let mut scene = Scene::new();
    scene.done(Kind::Append(2));
    assert_eq!(scene.read(Some(&[])), LOST);
}

#[test]
fn refused_operations_and_other_objects_data_are_not_seen() {
    let mut scene = Scene::new();
    let refused = scene.begin(Kind::Write(0, 1));
    scene.end(refused, Outcome::Nothing);
    assert_eq!(scene.read(Some(&[refused.cell(0)])), Some("a refused operation of the striper took effect"));

    let mut scene = Scene::new();
    let other = scene.history.begin(1, 0, 1, Kind::Write(0, 1));
    assert_eq!(scene.read(Some(&[other.cell(0)])), Some("a striped object has another one's data"));
}

#[test]
fn pieces_may_be_left_by_who_died_only() {
    for dies in [false, true] {
        let mut scene = Scene::new();
        scene.done(Kind::Write(0, 1));
        scene.done(Kind::Remove);
        if dies {
            scene.history.process_died(0);
        }
        scene.history.check_leftover_pieces(&["striped0.0000000000000001".to_owned()]);
        assert_eq!(scene.history.broken.is_none(), dies);
    }
    assert_eq!(CELL, 8);
}
