//! The compiler of text maps.
//!
//! Grammar: `(tunable | device | type)* (bucket | rule)* choose_args*`. Words are separated by white space; text from `#` to
//! the end of the line is ignored. Names must be defined before they are used.

use crate::edit::{CrushError, MAX_BUCKET_WEIGHT, MAX_DEVICE_WEIGHT, is_valid_name};
use crate::model::{
    BucketAlg, ChooseArg, ChooseArgs, CrushMap, MAX_DEVICES, Rule, RuleType, Step, StepOp, TunablesProfile,
    WEIGHT_ONE,
};
use std::collections::{BTreeMap, BTreeSet};

/// An error in a text map and its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line} error: {message}")]
pub struct CompileError {
    /// The line, counted from 1.
    pub line: usize,
    /// The error.
    pub message: String,
}

impl CrushMap {
    /// Compiles a text map. Missing tunables have the legacy values.
    pub fn compile(text: &str) -> Result<Self, CompileError> {
        let mut c = Compiler {
            tokens: tokenize(text),
            at: 0,
            map: CrushMap { tunables: TunablesProfile::Argonaut.tunables(), ..CrushMap::default() },
            given_ids: BTreeSet::new(),
            bucket_weights: BTreeMap::new(),
            class_ids: BTreeMap::new(),
            populated: false,
        };
        c.run()?;
        c.map.recompute_max_devices();
        match c.map.check_structure() {
            Ok(()) => Ok(c.map),
            Err(error) => c.fail(error.to_string()),
        }
    }
}

#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

fn tokenize(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.split_once('#').map_or(line, |(code, _)| code);
        for word in code.split_whitespace() {
            let mut rest = word;
            while let Some(at) = rest.find(['{', '}', '[', ']']) {
                let (before, bracket) = rest.split_at(at);
                if !before.is_empty() {
                    tokens.push(Token { text: before, line: index + 1 });
                }
                tokens.push(Token { text: &bracket[..1], line: index + 1 });
                rest = &bracket[1..];
            }
            if !rest.is_empty() {
                tokens.push(Token { text: rest, line: index + 1 });
            }
        }
    }
    tokens
}

struct Compiler<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    map: CrushMap,
    /// Bucket ids in the text, which are not assigned to other buckets.
    given_ids: BTreeSet<i32>,
    bucket_weights: BTreeMap<i32, u32>,
    /// Shadow ids in the text: bucket to (class to id).
    class_ids: BTreeMap<i32, BTreeMap<i32, i32>>,
    populated: bool,
}

type Compiled<T> = Result<T, CompileError>;

impl<'a> Compiler<'a> {
    fn run(&mut self) -> Compiled<()> {
        self.find_given_ids();
        loop {
            match self.peek() {
                "tunable" => self.tunable()?,
                "device" => self.device()?,
                "type" => self.bucket_type()?,
                _ => break,
            }
        }
        loop {
            match self.peek() {
                "" => return Ok(()),
                "choose_args" => break,
                "rule" => self.rule()?,
                _ => self.bucket()?,
            }
        }
        while self.peek() == "choose_args" {
            self.choose_args()?;
        }
        if self.peek().is_empty() { Ok(()) } else { self.parse_error() }
    }

    /// Returns the next word; empty at the end.
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).map_or("", |t| t.text)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    fn last_line(&self) -> usize {
        self.tokens.get(self.at.saturating_sub(1)).map_or(1, |t| t.line)
    }

    fn parse_error<T>(&self) -> Compiled<T> {
        let line = self.line();
        let rest: Vec<&str> = self.tokens[self.at.min(self.tokens.len())..]
            .iter()
            .take_while(|t| t.line == line)
            .map(|t| t.text)
            .collect();
        Err(CompileError { line, message: format!("parse error at '{}'", rest.join(" ")) })
    }

    /// Returns an error about the word just read.
    fn fail<T>(&self, message: impl Into<String>) -> Compiled<T> {
        Err(CompileError { line: self.last_line(), message: message.into() })
    }

    fn edit<T>(&self, result: Result<T, CrushError>) -> Compiled<T> {
        result.or_else(|error| self.fail(error.to_string()))
    }

    fn take_if(&mut self, word: &str) -> bool {
        let found = self.peek() == word;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, word: &str) -> Compiled<()> {
        if self.take_if(word) { Ok(()) } else { self.parse_error() }
    }

    fn name(&mut self) -> Compiled<&'a str> {
        let word = self.peek();
        if !is_valid_name(word) {
            return self.parse_error();
        }
        self.at += 1;
        Ok(word)
    }

    /// Reads a number of the grammar: digits, with a sign if permitted.
    fn number(&mut self, sign: impl Fn(bool) -> bool) -> Compiled<i64> {
        let word = self.peek();
        let digits = word.strip_prefix('-').unwrap_or(word);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) || !sign(word.starts_with('-')) {
            return self.parse_error();
        }
        self.at += 1;
        // Numbers out of range saturate, as with strtol.
        Ok(word.parse().unwrap_or(if word.starts_with('-') { i64::MIN } else { i64::MAX }))
    }

    fn in_range(&self, number: i64, max: i64) -> Compiled<i64> {
        if (-max..=max).contains(&number) {
            Ok(number)
        } else {
            self.fail(format!("{number} is out of range"))
        }
    }

    fn positive(&mut self, max: i64) -> Compiled<i64> {
        let number = self.number(|negative| !negative)?;
        self.in_range(number, max)
    }

    fn negative(&mut self) -> Compiled<i32> {
        let number = self.number(|negative| negative)?;
        Ok(self.in_range(number, i64::from(i32::MAX))? as i32)
    }

    fn integer(&mut self) -> Compiled<i32> {
        let number = self.number(|_| true)?;
        Ok(self.in_range(number, i64::from(i32::MAX))? as i32)
    }

    /// Reads a weight and converts it to 16.16 in single precision with truncation, as in Ceph.
    fn weight(&mut self) -> Compiled<u32> {
        let word = self.peek();
        let is_number =
            word.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E'));
        let Some(value) = word.parse::<f32>().ok().filter(|_| is_number) else { return self.parse_error() };
        self.at += 1;
        let scaled = value * WEIGHT_ONE as f32;
        if scaled < 0.0 || scaled >= u32::MAX as f32 {
            return self.fail(format!("weight {word} is out of range"));
        }
        Ok(scaled as u32)
    }

    /// Collects the ids of all buckets before any is compiled.
    fn find_given_ids(&mut self) {
        for window in self.tokens.windows(3) {
            if window[0].text == "{"
                && window[1].text == "id"
                && let Ok(id) = window[2].text.parse::<i32>()
                && id < 0
            {
                self.given_ids.insert(id);
            }
        }
    }

    fn tunable(&mut self) -> Compiled<()> {
        self.at += 1;
        let name = self.name()?;
        let value = self.positive(i64::from(i32::MAX))? as u32;
        if self.map.tunables.set_by_name(name, value) {
            Ok(())
        } else {
            self.fail(format!("tunable {name} not recognized"))
        }
    }

    fn device(&mut self) -> Compiled<()> {
        self.at += 1;
        let id = self.positive(i64::from(MAX_DEVICES) - 1)? as i32;
        let name = self.name()?;
        if self.map.item_id(name).is_some() {
            return self.fail(format!("item {name} defined twice"));
        }
        self.map.item_names.insert(id, name.to_owned());
        if self.take_if("class") {
            let class = self.name()?;
            let class = self.map.get_or_create_class(class);
            let class = self.edit(class)?;
            self.map.device_classes.insert(id, class);
        }
        Ok(())
    }

    fn bucket_type(&mut self) -> Compiled<()> {
        self.at += 1;
        let id = self.positive(i64::from(u16::MAX))? as i32;
        let name = self.name()?;
        self.map.type_names.insert(id, name.to_owned());
        Ok(())
    }

    fn bucket(&mut self) -> Compiled<()> {
        let type_name = self.name()?;
        let Some(type_id) = self.map.type_id(type_name) else {
            return self.fail(format!("bucket type '{type_name}' is not defined"));
        };
        let name = self.name()?;
        if self.map.item_id(name).is_some() {
            return self.fail(format!("bucket or device '{name}' is already defined"));
        }
        self.expect("{")?;
        let mut id = None;
        let mut class_ids = BTreeMap::new();
        while self.take_if("id") {
            let number = self.negative()?;
            if !self.take_if("class") {
                id = Some(number);
                continue;
            }
            let class_name = self.name()?;
            let class = self.map.get_or_create_class(class_name);
            let class = self.edit(class)?;
            if class_ids.insert(class, number).is_some() {
                return self.fail(format!("duplicate device class {class_name} for bucket {name}"));
            }
        }
        self.expect("alg")?;
        let alg_name = self.name()?;
        let Some(alg) = BucketAlg::from_name(alg_name) else {
            return self.fail(format!("unknown bucket alg '{alg_name}'"));
        };
        let mut hash = 0;
        while self.take_if("hash") {
            hash = if self.take_if("rjenkins1") { 0 } else { self.positive(i64::from(u8::MAX))? as u8 };
        }
        let mut items = Vec::new();
        while self.take_if("item") {
            items.push(self.bucket_item(name)?);
        }
        self.expect("}")?;
        let items = self.arrange(name, alg, items)?;

        let id = match id {
            Some(id) => id,
            None => (1..).map(|n| -n).find(|id| !self.given_ids.contains(id)).unwrap_or(i32::MIN),
        };
        self.given_ids.insert(id);
        if self.map.bucket(id).is_some() {
            return self.fail(format!("Duplicate bucket id {id}"));
        }
        if !class_ids.is_empty() {
            self.class_ids.insert(id, class_ids);
        }
        let added = self.map.add_bucket(Some(id), alg, hash, type_id as u16, &items, name);
        self.edit(added)?;
        self.bucket_weights.insert(id, items.iter().map(|(_, weight)| weight).sum());
        Ok(())
    }

    fn bucket_item(&mut self, bucket: &str) -> Compiled<Item<'a>> {
        let name = self.name()?;
        let Some(id) = self.map.item_id(name) else {
            return self.fail(format!("item '{name}' in bucket '{bucket}' is not defined"));
        };
        let mut weight = self.bucket_weights.get(&id).copied().unwrap_or(WEIGHT_ONE);
        if self.take_if("weight") {
            weight = self.weight()?;
            if id >= 0 && weight > MAX_DEVICE_WEIGHT {
                return self.fail(format!("device weight limited to {}", MAX_DEVICE_WEIGHT / WEIGHT_ONE));
            }
            if weight > MAX_BUCKET_WEIGHT {
                let limit = MAX_BUCKET_WEIGHT / WEIGHT_ONE;
                return self.fail(format!("bucket weight limited to {limit} to prevent overflow"));
            }
        }
        let pos = if self.take_if("pos") { Some(self.positive(i64::from(i32::MAX))? as usize) } else { None };
        Ok(Item { name, id, weight, pos })
    }

    /// Puts items with a position there, and the others in order into the remaining places.
    fn arrange(&self, bucket: &str, alg: BucketAlg, items: Vec<Item<'_>>) -> Compiled<Vec<(i32, u32)>> {
        let size = items.len();
        let mut placed: Vec<Option<(i32, u32)>> = vec![None; size];
        for item in &items {
            let Some(pos) = item.pos else { continue };
            match placed.get_mut(pos) {
                Some(Some(_)) => {
                    let name = item.name;
                    return self.fail(format!(
                        "item '{name}' in bucket '{bucket}' has explicit pos {pos}, which is occupied"
                    ));
                }
                Some(place) => *place = Some((item.id, item.weight)),
                None => {
                    let name = item.name;
                    return self
                        .fail(format!("item '{name}' in bucket '{bucket}' has pos {pos} >= size {size}"));
                }
            }
        }
        let mut others = items.iter().filter(|item| item.pos.is_none()).map(|item| (item.id, item.weight));
        let arranged: Vec<(i32, u32)> =
            placed.into_iter().filter_map(|place| place.or_else(|| others.next())).collect();
        if alg == BucketAlg::Uniform
            && let Some(odd) = items.iter().find(|item| item.weight != items[0].weight)
        {
            return self.fail(format!(
                "item '{}' in uniform bucket '{bucket}' has weight {} but previous item(s) have weight {}; uniform \
                 bucket items must all have identical weights.",
                odd.name,
                odd.weight,
                items[0].weight as f32 / WEIGHT_ONE as f32
            ));
        }
        let mut total = 0_u32;
        for (_, weight) in &arranged {
            total = match total.checked_add(*weight) {
                Some(total) => total,
                None => {
                    let why = "oh no! our bucket weights are overflowing all over the place, better lower the item weights";
                    return self.fail(why);
                }
            };
        }
        Ok(arranged)
    }

    fn rule(&mut self) -> Compiled<()> {
        self.at += 1;
        if !self.populated {
            self.populated = true;
            let class_ids = std::mem::take(&mut self.class_ids);
            let populated = self.map.populate_classes(&class_ids);
            self.edit(populated)?;
        }
        let name = if self.peek() == "{" { "" } else { self.name()? };
        self.expect("{")?;
        if !self.take_if("id") {
            self.expect("ruleset")?;
        }
        let id = self.positive(i64::from(u8::MAX))? as u32;
        self.expect("type")?;
        let kind = if self.take_if("replicated") {
            RuleType::Replicated
        } else {
            self.expect("erasure")?;
            RuleType::Erasure
        };
        self.expect("min_size")?;
        let min_size = self.positive(i64::from(u8::MAX))? as u8;
        self.expect("max_size")?;
        let max_size = self.positive(i64::from(u8::MAX))? as u8;
        let mut steps = Vec::new();
        self.expect("step")?;
        steps.push(self.step(name)?);
        while self.take_if("step") {
            steps.push(self.step(name)?);
        }
        self.expect("}")?;
        let added = self.map.add_rule(id, name, Rule { ruleset: id as u8, kind, min_size, max_size, steps });
        self.edit(added)
    }

    fn step(&mut self, rule: &str) -> Compiled<Step> {
        const SETTINGS: [StepOp; 6] = [
            StepOp::SetChooseTries,
            StepOp::SetChooseleafTries,
            StepOp::SetChooseLocalTries,
            StepOp::SetChooseLocalFallbackTries,
            StepOp::SetChooseleafVaryR,
            StepOp::SetChooseleafStable,
        ];
        let word = self.peek();
        if let Some(op) = SETTINGS.into_iter().find(|op| op.name() == word) {
            self.at += 1;
            return Ok(Step::set(op, self.positive(i64::from(i32::MAX))? as i32));
        }
        match word {
            "take" => {
                self.at += 1;
                self.take_step(rule)
            }
            "emit" => {
                self.at += 1;
                Ok(Step::emit())
            }
            "choose" | "chooseleaf" => {
                self.at += 1;
                let op = match (word, self.take_if("firstn")) {
                    ("choose", true) => StepOp::ChooseFirstn,
                    ("choose", false) => StepOp::ChooseIndep,
                    (_, true) => StepOp::ChooseleafFirstn,
                    (_, false) => StepOp::ChooseleafIndep,
                };
                if matches!(op, StepOp::ChooseIndep | StepOp::ChooseleafIndep) {
                    self.expect("indep")?;
                }
                let count = self.integer()?;
                self.expect("type")?;
                let type_name = self.name()?;
                match self.map.type_id(type_name) {
                    Some(type_id) => Ok(Step::choose(op, count, type_id)),
                    None => self.fail(format!("in rule '{rule}' type '{type_name}' not defined")),
                }
            }
            _ => self.parse_error(),
        }
    }

    fn take_step(&mut self, rule: &str) -> Compiled<Step> {
        let item = self.name()?;
        let Some(id) = self.map.item_id(item) else {
            return self.fail(format!("in rule '{rule}' item '{item}' not defined"));
        };
        if !self.take_if("class") {
            return Ok(Step::take(id));
        }
        let class = self.name()?;
        let Some(class_id) = self.map.class_id(class) else {
            return self.fail(format!("in rule '{rule}' class '{class}' not defined"));
        };
        match self.map.class_bucket(id, class_id) {
            Some(shadow) => Ok(Step::take(shadow)),
            None if !self.map.class_buckets.contains_key(&id) => {
                self.fail(format!("in rule '{rule}' step take {item} has no class information"))
            }
            None => {
                self.fail(format!("in rule '{rule}' step take {item} no matching bucket for class {class}"))
            }
        }
    }

    fn choose_args(&mut self) -> Compiled<()> {
        self.at += 1;
        // Read as a C int after saturation, so that the unsigned form of -1 is -1 again.
        let id = i64::from(self.number(|negative| !negative)? as i32);
        if self.map.choose_args.contains_key(&id) {
            return self.fail(format!("{id} duplicated"));
        }
        self.expect("{")?;
        let mut args = ChooseArgs::default();
        while self.take_if("{") {
            self.expect("bucket_id")?;
            let bucket_id = self.negative()?;
            let Some(size) = self.map.bucket(bucket_id).map(|b| b.items.len()) else {
                return self.fail(format!("{bucket_id} does not exist"));
            };
            let mut arg = ChooseArg::default();
            if self.take_if("weight_set") {
                self.expect("[")?;
                while self.take_if("[") {
                    let mut weights = Vec::new();
                    while self.peek() != "]" {
                        weights.push(self.weight()?);
                    }
                    self.at += 1;
                    if weights.len() != size {
                        let got = weights.len();
                        return self.fail(format!("{bucket_id} needs exactly {size} weights but got {got}"));
                    }
                    arg.weight_set.push(weights);
                }
                self.expect("]")?;
            }
            if self.take_if("ids") {
                self.expect("[")?;
                while self.peek() != "]" {
                    arg.ids.push(self.integer()?);
                }
                self.at += 1;
                if arg.ids.len() != size {
                    let got = arg.ids.len();
                    return self.fail(format!("{bucket_id} needs exactly {size} ids but got {got}"));
                }
            }
            self.expect("}")?;
            args.set(!bucket_id as usize, arg);
        }
        self.expect("}")?;
        self.map.choose_args.insert(id, args);
        Ok(())
    }
}

struct Item<'a> {
    name: &'a str,
    id: i32,
    weight: u32,
    pos: Option<usize>,
}
