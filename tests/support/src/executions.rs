//! Executions of the state machines.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{Api, Json};
use crate::error::{Error, Result};

/// How an execution ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `SUCCEEDED`, `FAILED`, `ABORTED` or `TIMED_OUT`.
    pub status: String,
    pub output: Option<Value>,
    pub error: Option<String>,
    /// As Step Functions shows it; [`Outcome::cause_json`] reads it.
    pub cause: Option<String>,
}

impl Outcome {
    /// The documented cause `{code, message, hint, details}`, or null if it is none.
    pub fn cause_json(&self) -> Value {
        self.cause.as_deref().and_then(|cause| serde_json::from_str(cause).ok()).unwrap_or_default()
    }

    pub fn succeeded(&self) -> bool {
        self.status == "SUCCEEDED"
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.status)?;
        if let Some(output) = &self.output {
            write!(f, ": {output}")?;
        }
        if let Some(error) = &self.error {
            write!(f, ": {error}")?;
        }
        if let Some(cause) = &self.cause {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl Api {
    /// Starts an execution of `cdkd-deploy` or `cdkd-destroy` and returns its ARN.
    pub fn start_execution(&self, machine: &str, input: &Value) -> Result<String> {
        self.start(machine, None, input)
    }

    /// The same under a name of the caller's choice.
    pub fn start_named_execution(&self, machine: &str, name: &str, input: &Value) -> Result<String> {
        self.start(machine, Some(name), input)
    }

    fn start(&self, machine: &str, name: Option<&str>, input: &Value) -> Result<String> {
        let mut request = json!({"stateMachineArn": self.machine_arn(machine), "input": input.to_string()});
        if let Some(name) = name {
            request["name"] = name.into();
        }
        let answer = self.json(Json::StepFunctions, "StartExecution", &request)?;
        answer["executionArn"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| Error::other("an execution without ARN"))
    }

    /// The ARN of a state machine of this account and region.
    pub fn machine_arn(&self, machine: &str) -> String {
        format!("arn:aws:states:{}:{}:stateMachine:{machine}", self.region(), self.account())
    }

    /// `RUNNING`, or how the execution ended.
    pub fn describe_execution(&self, execution: &str) -> Result<Outcome> {
        let request = json!({"executionArn": execution});
        let answer = self.json(Json::StepFunctions, "DescribeExecution", &request)?;
        let text = |name: &str| answer[name].as_str().map(str::to_owned);
        let status = text("status").unwrap_or_default();
        let output = text("output").filter(|_| status == "SUCCEEDED");
        Ok(Outcome {
            output: output.and_then(|it| serde_json::from_str(&it).ok()),
            error: text("error"),
            cause: text("cause"),
            status,
        })
    }

    /// Waits up to five minutes for an execution to end.
    pub fn wait(&self, execution: &str) -> Result<Outcome> {
        self.wait_at_most(execution, Duration::from_mins(5))
    }

    /// Waits for an execution to end; that it has not by then is an error that names its last event.
    pub fn wait_at_most(&self, execution: &str, patience: Duration) -> Result<Outcome> {
        let deadline = Instant::now() + patience;
        loop {
            let outcome = self.describe_execution(execution)?;
            if outcome.status != "RUNNING" {
                return Ok(outcome);
            }
            if Instant::now() > deadline {
                let history = self.history(execution)?;
                let last = history.last().cloned().unwrap_or_default();
                return Err(Error::other(format!("{execution} still runs; its last event: {last}")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Stops an execution, as a person would in the console.
    pub fn stop_execution(&self, execution: &str) -> Result<()> {
        self.json(Json::StepFunctions, "StopExecution", &json!({"executionArn": execution})).map(drop)
    }

    /// All events of an execution, oldest first.
    pub fn history(&self, execution: &str) -> Result<Vec<Value>> {
        let mut events = Vec::new();
        let mut request = json!({"executionArn": execution, "maxResults": 1000});
        loop {
            let mut page = self.json(Json::StepFunctions, "GetExecutionHistory", &request)?;
            if let Some(found) = page["events"].as_array_mut() {
                events.append(found);
            }
            match page["nextToken"].take() {
                Value::Null => return Ok(events),
                token => request["nextToken"] = token,
            }
        }
    }

    /// The names of the states that an execution entered, in order.
    pub fn states_entered(&self, execution: &str) -> Result<Vec<String>> {
        let history = self.history(execution)?;
        let name = |event: &Value| Some(event["stateEnteredEventDetails"]["name"].as_str()?.to_owned());
        Ok(history.iter().filter_map(name).collect())
    }
}
