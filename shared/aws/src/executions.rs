//! Step Functions: whether an execution still runs.

use aws_config::SdkConfig;
use aws_sdk_sfn::config::Builder;
use aws_sdk_sfn::{Client, config::Region};
use cdkd_core::Result;

use crate::failure::Failure;

/// Step Functions, in the region of each execution.
pub struct Executions {
    config: SdkConfig,
}

/// What is known of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// SUCCEEDED, FAILED, TIMED_OUT or ABORTED: the only proof of death (rule L12).
    Ended,
    /// It runs, or nobody can tell.
    MayRun,
}

impl Executions {
    pub fn new(config: &SdkConfig) -> Self {
        Self { config: config.clone() }
    }

    /// Anything but a clear answer is [`Life::MayRun`].
    pub async fn life(&self, arn: &str) -> Result<Life> {
        Ok(if self.ended(arn).await?.is_some() { Life::Ended } else { Life::MayRun })
    }

    /// The status with which an execution has ended; `None` if it runs, or nobody can tell. Asks in the region that the
    /// ARN names.
    pub async fn ended(&self, arn: &str) -> Result<Option<String>> {
        let mut config = Builder::from(&self.config);
        if let Some(region) = region_of(arn) {
            config = config.region(Region::new(region.to_owned()));
        }
        let client = Client::from_conf(config.build());
        match client.describe_execution().execution_arn(arn).send().await {
            Ok(answer) => Ok(Some(answer.status.as_str()).filter(|it| is_end(it)).map(str::to_owned)),
            Err(error) => {
                let failure = Failure::of(&error);
                if failure.unknown() || failure.throttled() {
                    return Err(failure.into_error(&format!("ask whether `{arn}` still runs")));
                }
                Ok(None)
            }
        }
    }
}

/// `arn:{partition}:states:{region}:…`
fn region_of(arn: &str) -> Option<&str> {
    arn.split(':').nth(3).filter(|region| !region.is_empty())
}

fn is_end(status: &str) -> bool {
    matches!(status, "SUCCEEDED" | "FAILED" | "TIMED_OUT" | "ABORTED")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l12_four_words_prove_an_execution_dead_and_its_own_region_is_asked() {
        for status in ["SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED"] {
            assert!(is_end(status), "{status}");
        }
        for status in ["RUNNING", "PENDING_REDRIVE", "", "succeeded", "SOMETHING_NEW"] {
            assert!(!is_end(status), "{status}");
        }
        assert_eq!(
            region_of("arn:aws:states:eu-west-1:123456789012:execution:cdkd-deploy:e"),
            Some("eu-west-1")
        );
        for text in ["", "e", "arn:aws:states::123456789012:execution:cdkd-deploy:e"] {
            assert_eq!(region_of(text), None, "{text}");
        }
    }
}
