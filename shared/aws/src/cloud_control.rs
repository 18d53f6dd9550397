//! Cloud Control: the one engine for every type that it can handle.
//!
//! Calls are sent once here: whoever calls decides on repetition, because a create without an answer may have
//! happened. Source: Cloud Control API reference, `ProgressEvent`.

use std::rc::Rc;

use aws_config::SdkConfig;
use aws_config::retry::RetryConfig;
use aws_sdk_cloudcontrol::Client;
use aws_sdk_cloudcontrol::config::Builder;
use aws_sdk_cloudcontrol::types::{Operation, OperationStatus, ProgressEvent, ResourceRequestStatusFilter};
use cdkd_core::name::Region;
use cdkd_core::protocol::step::{Answer, Progress, Refused, Status};
use serde_json::Value;

use crate::failure::Failure;

/// Cloud Control of one region, acting through `cdkd-exec`.
pub struct CloudControl {
    once: Client,
    patient: Client,
    role: Option<String>,
    config: SdkConfig,
}

impl CloudControl {
    pub fn new(config: &SdkConfig, role: Option<String>) -> Self {
        let once = Builder::from(config).retry_config(RetryConfig::disabled()).build();
        Self { once: Client::from_conf(once), patient: Client::new(config), role, config: config.clone() }
    }

    /// That of a stack's region, which may be another than the one cdkd is installed in.
    #[must_use]
    pub fn of(self: &Rc<Self>, region: &Region) -> Rc<Self> {
        if self.config.region().is_some_and(|own| own.as_ref() == region.as_str()) {
            return Rc::clone(self);
        }
        let region = aws_config::Region::new(region.to_string());
        Rc::new(Self::new(&self.config.to_builder().region(region).build(), self.role.clone()))
    }

    /// Sends a create. `desired`: live form.
    pub async fn create(&self, type_name: &str, desired: &str, client_token: &str) -> Answer<Progress> {
        let answer = self
            .once
            .create_resource()
            .type_name(type_name)
            .desired_state(desired)
            .client_token(client_token)
            .set_role_arn(self.role.clone())
            .send()
            .await;
        match answer {
            Ok(answer) => Ok(progress(answer.progress_event)),
            Err(error) => {
                Err(refused(&Failure::of(&error), &format!("create a resource of type {type_name}")))
            }
        }
    }

    /// Sends an update. `patch`: an RFC 6902 document.
    pub async fn update(
        &self,
        type_name: &str,
        identifier: &str,
        patch: &str,
        client_token: &str,
    ) -> Answer<Progress> {
        let answer = self
            .once
            .update_resource()
            .type_name(type_name)
            .identifier(identifier)
            .patch_document(patch)
            .client_token(client_token)
            .set_role_arn(self.role.clone())
            .send()
            .await;
        match answer {
            Ok(answer) => Ok(progress(answer.progress_event)),
            Err(error) => {
                Err(refused(&Failure::of(&error), &format!("update `{identifier}` of type {type_name}")))
            }
        }
    }

    /// Sends a delete.
    pub async fn delete(&self, type_name: &str, identifier: &str, client_token: &str) -> Answer<Progress> {
        let answer = self
            .once
            .delete_resource()
            .type_name(type_name)
            .identifier(identifier)
            .client_token(client_token)
            .set_role_arn(self.role.clone())
            .send()
            .await;
        match answer {
            Ok(answer) => Ok(progress(answer.progress_event)),
            Err(error) => {
                Err(refused(&Failure::of(&error), &format!("delete `{identifier}` of type {type_name}")))
            }
        }
    }

    /// Asks how far a request is.
    pub async fn status(&self, request_token: &str) -> Answer<Progress> {
        match self.once.get_resource_request_status().request_token(request_token).send().await {
            Ok(answer) => Ok(progress(answer.progress_event)),
            Err(error) => Err(refused(&Failure::of(&error), "ask for the progress of a request")),
        }
    }

    /// The newest request to delete a resource since a time (milliseconds since 1970), if Cloud Control took any. It
    /// keeps requests for seven days.
    pub async fn delete_since(
        &self,
        type_name: &str,
        identifier: &str,
        since: i64,
    ) -> Answer<Option<Progress>> {
        let mut pages = self
            .patient
            .list_resource_requests()
            .resource_request_status_filter(
                ResourceRequestStatusFilter::builder().operations(Operation::Delete).build(),
            )
            .max_results(100)
            .into_paginator()
            .send();
        let mut newest: Option<(i64, ProgressEvent)> = None;
        while let Some(page) = pages.next().await {
            let page = page.map_err(|error| refused(&Failure::of(&error), "list the requests to delete"))?;
            for event in page.resource_request_status_summaries.unwrap_or_default() {
                let at = event.event_time.and_then(|time| time.to_millis().ok()).unwrap_or(i64::MAX);
                let fits = event.type_name.as_deref() == Some(type_name)
                    && event.identifier.as_deref() == Some(identifier)
                    && at >= since;
                if fits && newest.as_ref().is_none_or(|(known, _)| at > *known) {
                    newest = Some((at, event));
                }
            }
        }
        Ok(newest.map(|(_, event)| progress(Some(event))))
    }

    /// Reads a resource's model; `None` when there is no such resource.
    pub async fn read(&self, type_name: &str, identifier: &str) -> Answer<Option<Value>> {
        let answer = self
            .patient
            .get_resource()
            .type_name(type_name)
            .identifier(identifier)
            .set_role_arn(self.role.clone())
            .send()
            .await;
        match answer {
            Ok(answer) => Ok(answer
                .resource_description
                .and_then(|description| description.properties)
                .and_then(|properties| serde_json::from_str(&properties).ok())),
            Err(error) => {
                let failure = Failure::of(&error);
                if failure.code == "ResourceNotFoundException" {
                    return Ok(None);
                }
                Err(refused(&failure, &format!("read `{identifier}` of type {type_name}")))
            }
        }
    }
}

fn progress(event: Option<ProgressEvent>) -> Progress {
    let Some(event) = event else {
        // An answer without an event: nothing is known but that it was taken.
        return Progress {
            request_token: String::new(),
            status: Status::InProgress,
            identifier: None,
            model: None,
            retry_after: None,
        };
    };
    let status = match event.operation_status {
        Some(OperationStatus::Success) => Status::Success,
        Some(OperationStatus::Failed | OperationStatus::CancelComplete) => Status::Failed {
            code: event
                .error_code
                .map_or_else(|| "GeneralServiceException".into(), |code| code.as_str().to_owned()),
            message: event.status_message.unwrap_or_default(),
        },
        _ => Status::InProgress,
    };
    Progress {
        request_token: event.request_token.unwrap_or_default(),
        status,
        identifier: event.identifier,
        model: event.resource_model.and_then(|model| serde_json::from_str(&model).ok()),
        retry_after: event.retry_after.and_then(|time| time.to_millis().ok()),
    }
}

#[expect(clippy::unnecessary_box_returns, reason = "it is the error of a result, which is small without it")]
fn refused(failure: &Failure, doing: &str) -> Box<Refused> {
    let copy =
        Failure { status: failure.status, code: failure.code.clone(), message: failure.message.clone() };
    Box::new(Refused {
        code: failure.code.clone(),
        message: failure.message.clone(),
        throttled: failure.throttled(),
        unknown: failure.unknown(),
        error: copy.into_error(doing),
    })
}
