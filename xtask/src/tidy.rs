//! What the files beside the code have to keep to, as tests.

use std::collections::BTreeSet;
use std::fs;

use cdkd_core::Code;
use cdkd_core::error::Kind;
use cdkd_test_support::workspace;
use serde_json::{Map, Value};

const MACHINES: [&str; 2] = ["deploy", "destroy"];

/// The states of a machine: those at its top first, then those of each Map.
fn scopes(machine: &str) -> Vec<Map<String, Value>> {
    let path = workspace::root().join(format!("statemachine/{machine}.asl.json"));
    let mut definition: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(definition["QueryLanguage"], "JSONata");
    let Value::Object(states) = definition["States"].take() else { panic!("{machine} has no states") };
    let mut scopes = vec![states];
    let mut next = 0;
    while let Some(scope) = scopes.get(next) {
        let inner: Vec<_> = scope
            .values()
            .filter_map(|state| state["ItemProcessor"]["States"].as_object().cloned())
            .collect();
        scopes.extend(inner);
        next += 1;
    }
    scopes
}

/// All states of a machine.
fn states(machine: &str) -> Vec<(String, Value)> {
    scopes(machine).into_iter().flatten().collect()
}

/// The variables that a state assigns, wherever it does.
fn assigned(state: &Value) -> BTreeSet<&str> {
    let rules = ["Catch", "Choices"].into_iter().filter_map(|field| state[field].as_array()).flatten();
    rules
        .chain([state])
        .filter_map(|place| place["Assign"].as_object())
        .flat_map(|it| it.keys().map(String::as_str))
        .collect()
}

/// The error names of all entries of a `Retry` or `Catch`.
fn names(entries: &Value) -> BTreeSet<&str> {
    let entries = entries.as_array().into_iter().flatten();
    entries
        .flat_map(|entry| entry["ErrorEquals"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn every_task_retries_what_may_pass_and_catches_the_rest() {
    let retryable = Code::ALL.iter().filter(|code| code.kind() == Kind::Retryable).map(|code| code.name());
    let service =
        ["Lambda.ServiceException", "Lambda.TooManyRequestsException", "Lambda.Unknown", "Sandbox.Timedout"];
    let retried: BTreeSet<&str> = retryable.chain(service).collect();
    let final_codes: BTreeSet<&str> =
        Code::ALL.iter().filter(|code| code.kind() != Kind::Retryable).map(|code| code.name()).collect();
    for machine in MACHINES {
        for (name, state) in states(machine).iter().filter(|(_, state)| state["Type"] == "Map") {
            assert_eq!(names(&state["Catch"]), BTreeSet::from(["States.ALL"]), "{machine}, {name}");
        }
        for (name, state) in states(machine).iter().filter(|(_, state)| state["Type"] == "Task") {
            let retry = names(&state["Retry"]);
            let missing: Vec<_> = retried.difference(&retry).collect();
            assert!(missing.is_empty(), "{machine}, {name}: does not retry {missing:?}");
            let vain: Vec<_> = retry.intersection(&final_codes).collect();
            assert!(vain.is_empty(), "{machine}, {name}: retries {vain:?} in vain");
            assert_eq!(names(&state["Catch"]), BTreeSet::from(["States.ALL"]), "{machine}, {name}");
            assert!(state["TimeoutSeconds"].is_u64(), "{machine}, {name}: waits for ever");
        }
    }
}

#[test]
fn every_failure_under_the_lock_is_aborted() {
    // Before the lock, and after the last stack is put down.
    let without_lock = ["Read assembly", "Plan", "Publish assets", "Release", "Finish", "Abort all"];
    for machine in MACHINES {
        let scopes = scopes(machine);
        for (depth, scope) in scopes.iter().enumerate() {
            let fallible =
                scope.iter().filter(|(_, state)| ["Task", "Map"].iter().any(|it| state["Type"] == *it));
            for (name, state) in fallible {
                let next = state["Catch"][0]["Next"].as_str().unwrap();
                let aborts = if depth == 0 {
                    without_lock.contains(&name.as_str()) || next == "Abort all"
                } else {
                    // Of one stack alone: its iteration never fails, so no other stack is interrupted.
                    let action = &scope[next]["Arguments"]["Payload"]["action"];
                    let told = scope[next]["Type"] == "Pass" && scope[next]["End"] == true;
                    action == "abort" || (told && (name.starts_with("Abort ") || name == "Recover"))
                };
                assert!(aborts, "{machine}, {name}: a failure leads to {next}");
            }
        }
    }
}

#[test]
fn names_and_variables_are_of_one_scope() {
    for machine in MACHINES {
        let mut names = BTreeSet::new();
        for (name, _) in states(machine) {
            assert!(names.insert(name.clone()), "{machine}: two states are called {name}");
        }
        // Step Functions refuses a variable of a Map that has the name of one outside.
        let scopes = scopes(machine);
        let outside: BTreeSet<_> = scopes[0].values().flat_map(assigned).collect();
        for (name, state) in scopes[1..].iter().flatten() {
            let both: Vec<_> = assigned(state).intersection(&outside).copied().collect();
            assert!(both.is_empty(), "{machine}, {name}: assigns {both:?} of the scope around it");
            assert!(state.get("QueryLanguage").is_none(), "{machine}, {name}");
        }
    }
}

#[test]
fn maps_run_in_the_history_of_their_execution() {
    for machine in MACHINES {
        for (name, state) in states(machine).iter().filter(|(_, state)| state["Type"] == "Map") {
            assert_eq!(state["MaxConcurrency"], 40, "{machine}, {name}");
            let mut processor = state["ItemProcessor"].as_object().unwrap().clone();
            assert_eq!(processor["ProcessorConfig"]["Mode"], "INLINE", "{machine}, {name}");
            processor.retain(|field, _| !["ProcessorConfig", "StartAt", "States"].contains(&field.as_str()));
            assert!(processor.is_empty(), "{machine}, {name}: {processor:?}");
        }
    }
}

#[test]
fn states_say_what_they_are_for() {
    for machine in MACHINES {
        for (name, state) in &states(machine) {
            assert!(state["Comment"].as_str().is_some_and(|comment| comment.len() > 10), "{machine}, {name}");
        }
    }
}

#[test]
fn the_template_fills_in_every_function() {
    let template = fs::read_to_string(workspace::root().join("infra/template.yaml")).unwrap();
    for machine in MACHINES {
        let (_, resource) = template.split_once(&format!("StateMachineName: cdkd-{machine}\n")).unwrap();
        let (_, substitutions) = resource.split_once("DefinitionSubstitutions:\n").unwrap();
        let (substitutions, _) = substitutions.split_once("\n\n").unwrap();
        let given: BTreeSet<_> =
            substitutions.lines().filter_map(|line| line.trim().split(':').next()).collect();
        let states = states(machine);
        let used: BTreeSet<_> = states
            .iter()
            .filter_map(|(_, state)| {
                state["Arguments"]["FunctionName"].as_str()?.strip_prefix("${")?.strip_suffix('}')
            })
            .collect();
        assert_eq!(given, used, "{machine}");
    }
}

#[test]
fn every_code_has_its_page() {
    let folder = workspace::root().join("docs/errors");
    let mut pages = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines().find(|line| line.starts_with('#')),
            Some(&*format!("# {}", name.trim_end_matches(".md")))
        );
        for section in ["## What happened", "## Why", "## What to do", "## Example"] {
            assert!(text.lines().any(|line| line == section), "{name} has no section `{section}`");
        }
        pages.insert(name);
    }
    let codes: BTreeSet<String> = Code::ALL.iter().map(|code| format!("{}.md", code.name())).collect();
    assert_eq!(pages, codes);
}
