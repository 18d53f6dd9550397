//! `cargo xtask bench`: measurements, each with the bound that it has to keep.

mod publish;
mod rewrite;
mod stacks;
mod start;

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    bench: Bench,
    /// Prints rows `{row, value, unit, bound, holds}` instead of a table
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Bench {
    /// The release functions: size, time and memory until they ask for work, memory after a deploy
    Start,
    /// Assets: rewrite and audit of references; publishing, beside bare calls; memory
    Assets,
    /// Runs of several stacks: time, requests of the reference protocol, events and payloads
    Stacks,
}

/// Measures and prints. An error if a bound does not hold.
pub fn run(arguments: &Arguments) -> Result<(), String> {
    let rows = match arguments.bench {
        Bench::Assets => rewrite::measure()?.into_iter().chain(publish::measure()?).collect(),
        Bench::Start => start::measure()?,
        Bench::Stacks => stacks::measure()?,
    };
    if arguments.json {
        println!("{:#}", Value::from(rows.iter().map(Row::to_json).collect::<Vec<_>>()));
    } else {
        print!("{}", table(&rows));
    }
    let broken = rows.iter().filter(|row| !row.holds()).count();
    if broken == 0 { Ok(()) } else { Err(format!("{broken} of the bounds do not hold")) }
}

/// One figure.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    bound: Option<Bound>,
}

/// What a value has to stay below, or above.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    Below(f64),
    Above(f64),
}

impl Row {
    fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit, bound: None }
    }

    fn below(mut self, bound: f64) -> Self {
        self.bound = Some(Bound::Below(bound));
        self
    }

    fn above(mut self, bound: f64) -> Self {
        self.bound = Some(Bound::Above(bound));
        self
    }

    fn holds(&self) -> bool {
        match self.bound {
            None => true,
            Some(Bound::Below(bound)) => self.value < bound,
            Some(Bound::Above(bound)) => self.value > bound,
        }
    }

    fn to_json(&self) -> Value {
        // As shown: further digits are noise.
        let value = (self.value * 100.0).round() / 100.0;
        let bound = self.bound.map(|bound| match bound {
            Bound::Below(bound) => json!({ "below": bound }),
            Bound::Above(bound) => json!({ "above": bound }),
        });
        json!({"row": self.name, "value": value, "unit": self.unit, "bound": bound, "holds": self.holds()})
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let bound = match row.bound {
            Some(bound) => {
                let not = if row.holds() { "" } else { "NOT " };
                match bound {
                    Bound::Below(bound) => format!("  {not}< {bound}"),
                    Bound::Above(bound) => format!("  {not}> {bound}"),
                }
            }
            None => String::new(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:44}{:>9.2} {}{bound}", row.name, row.value, row.unit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_kept_below_it() {
        let rows = [
            Row::new("a", 1.0, "ms"),
            Row::new("b", 14.987, "ms").below(15.0),
            Row::new("c", 15.0, "ms").below(15.0),
            Row::new("d", 3.1, "GB/s").above(3.0),
            Row::new("e", 3.0, "GB/s").above(3.0),
        ];
        assert_eq!(rows.each_ref().map(Row::holds), [true, true, false, true, false]);
        assert_eq!(
            rows[1].to_json(),
            json!({"row": "b", "value": 14.99, "unit": "ms", "bound": {"below": 15.0}, "holds": true})
        );
        let table = table(&rows);
        assert!(table.lines().nth(2).is_some_and(|line| line.ends_with("NOT < 15")), "{table}");
        assert!(table.lines().nth(4).is_some_and(|line| line.ends_with("NOT > 3")), "{table}");
    }
}
