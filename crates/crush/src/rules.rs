//! Rules: creation by commands, and removal.

use crate::edit::{CrushError, is_valid_name};
use crate::model::{CrushMap, Rule, RuleType, Step, StepOp};

/// `CRUSH_MAX_RULES`: rule ids are bytes in pools.
pub const MAX_RULES: usize = 256;

impl CrushMap {
    /// `osd crush rule create-simple` and `create-replicated`: adds a rule that starts at `root` (of device class `class`) and
    /// distributes over buckets of type `failure_domain` (`""` or the device type: over devices). Returns its id.
    ///
    /// `firstn` is the mode of replicated pools, `indep` that of erasure-coded ones.
    pub fn add_simple_rule(
        &mut self,
        name: &str,
        root: &str,
        failure_domain: &str,
        class: Option<&str>,
        firstn: bool,
        kind: RuleType,
    ) -> Result<u32, CrushError> {
        if self.rule_id(name).is_some() {
            return Err(CrushError::Exists(format!("rule {name} exists")));
        }
        let mut take = self
            .item_id(root)
            .ok_or_else(|| CrushError::NotFound(format!("root item {root} does not exist")))?;
        let type_id = match failure_domain {
            "" => 0,
            domain => {
                self.type_id(domain).ok_or_else(|| CrushError::Invalid(format!("unknown type {domain}")))?
            }
        };
        if let Some(class) = class.filter(|c| !c.is_empty()) {
            let id = self
                .class_id(class)
                .ok_or_else(|| CrushError::Invalid(format!("device class {class} does not exist")))?;
            take = self.class_bucket(take, id).ok_or_else(|| {
                CrushError::Invalid(format!("root {root} has no devices with class {class}"))
            })?;
        }
        let mut steps = Vec::new();
        if !firstn {
            steps.push(Step::set(StepOp::SetChooseleafTries, 5));
            steps.push(Step::set(StepOp::SetChooseTries, 100));
        }
        let op = match (type_id, firstn) {
            (0, true) => StepOp::ChooseFirstn,
            (0, false) => StepOp::ChooseIndep,
            (_, true) => StepOp::ChooseleafFirstn,
            (_, false) => StepOp::ChooseleafIndep,
        };
        steps.extend([Step::take(take), Step::choose(op, 0, type_id), Step::emit()]);
        let (min_size, max_size) = if firstn { (1, 10) } else { (3, 20) };

        let taken =
            |id: u32| self.rule(id).is_some() || self.rules().any(|(_, r)| u32::from(r.ruleset) == id);
        let id = (0..MAX_RULES as u32)
            .find(|id| !taken(*id))
            .ok_or_else(|| CrushError::OutOfRange(format!("there are {MAX_RULES} rules already")))?;
        self.add_rule(id, name, Rule { ruleset: id as u8, kind, min_size, max_size, steps })?;
        Ok(id)
    }

    /// Adds a rule unchanged, with this id.
    pub fn add_rule(&mut self, id: u32, name: &str, rule: Rule) -> Result<(), CrushError> {
        if id as usize >= MAX_RULES {
            return Err(CrushError::OutOfRange(format!("rule id {id} is not below {MAX_RULES}")));
        }
        if self.rule(id).is_some() {
            return Err(CrushError::Exists(format!("rule {id} already exists")));
        }
        if !name.is_empty() {
            if !is_valid_name(name) {
                return Err(CrushError::Invalid(format!("invalid rule name '{name}'")));
            }
            if self.rule_id(name).is_some() {
                return Err(CrushError::Exists(format!("rule name '{name}' already defined")));
            }
            self.rule_names.insert(id as i32, name.to_owned());
        }
        if id as usize >= self.rules.len() {
            self.rules.resize(id as usize + 1, None);
        }
        self.rules[id as usize] = Some(rule);
        Ok(())
    }

    /// `osd crush rule rm`. The caller must check that no pool uses it.
    pub fn remove_rule(&mut self, name: &str) -> Result<(), CrushError> {
        let id =
            self.rule_id(name).ok_or_else(|| CrushError::NotFound(format!("rule {name} does not exist")))?;
        self.rules[id as usize] = None;
        self.rule_names.remove(&(id as i32));
        self.rebuild_class_roots()
    }

    /// `osd crush rule rename`.
    pub fn rename_rule(&mut self, from: &str, to: &str) -> Result<(), CrushError> {
        let id = self
            .rule_id(from)
            .ok_or_else(|| CrushError::NotFound(format!("source rule name '{from}' does not exist")))?;
        if self.rule_id(to).is_some() {
            return Err(CrushError::Exists(format!("target rule name '{to}' already exists")));
        }
        if !is_valid_name(to) {
            return Err(CrushError::Invalid(format!("invalid rule name '{to}'")));
        }
        self.rule_names.insert(id as i32, to.to_owned());
        Ok(())
    }

    /// Returns the buckets from which a rule starts.
    pub fn rule_roots(&self, id: u32) -> Vec<i32> {
        let steps = self.rule(id).map_or(&[][..], |rule| &rule.steps);
        steps.iter().filter(|s| s.op == StepOp::Take).map(|s| s.arg1).collect()
    }
}
