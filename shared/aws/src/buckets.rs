//! The state bucket: versioned, encrypted, private, refused to other accounts, its events on EventBridge.

use aws_sdk_s3::Client;
use aws_sdk_s3::types::{
    BucketLocationConstraint, BucketVersioningStatus, CreateBucketConfiguration, EventBridgeConfiguration,
    NotificationConfiguration, PublicAccessBlockConfiguration, ServerSideEncryption,
    ServerSideEncryptionByDefault, ServerSideEncryptionConfiguration, ServerSideEncryptionRule,
    VersioningConfiguration,
};
use cdkd_core::{Code, Error, Result};
use serde_json::{Value, json};

use crate::edge::Invocation;
use crate::failure::Failure;

/// The state bucket of this installation.
pub struct StateBucket<'a> {
    s3: Client,
    name: &'a str,
    account: &'a str,
    region: &'a str,
    partition: &'static str,
}

impl<'a> StateBucket<'a> {
    /// Finds out where it is; it is made in this region if it is not there yet.
    pub async fn find(invocation: &'a Invocation) -> Result<Self> {
        Ok(Self {
            s3: invocation.aws.store.client(&invocation.settings.state_bucket).await?,
            name: &invocation.settings.state_bucket,
            account: invocation.settings.account.as_str(),
            region: invocation.settings.region.as_str(),
            partition: invocation.settings.region.partition().name,
        })
    }

    /// Makes the bucket, or brings the one that is there to the same settings; answers whether it was made.
    ///
    /// # Errors
    /// `BucketUnavailable` if another account owns the name: it is never adopted.
    pub async fn create(&self) -> Result<bool> {
        let created = !self.exists().await? && self.make().await?;
        self.s3
            .put_public_access_block()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .public_access_block_configuration(
                PublicAccessBlockConfiguration::builder()
                    .block_public_acls(true)
                    .block_public_policy(true)
                    .ignore_public_acls(true)
                    .restrict_public_buckets(true)
                    .build(),
            )
            .send()
            .await
            .map_err(|error| Failure::of(&error).into_error("block public access to the state bucket"))?;
        self.s3
            .put_bucket_versioning()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .versioning_configuration(
                VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build(),
            )
            .send()
            .await
            .map_err(|error| Failure::of(&error).into_error("switch on versions of the state bucket"))?;
        self.encrypt().await?;
        self.s3
            .put_bucket_policy()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .policy(self.policy().to_string())
            .send()
            .await
            .map_err(|error| Failure::of(&error).into_error("refuse the state bucket to other accounts"))?;
        self.notify().await?;
        Ok(created)
    }

    async fn exists(&self) -> Result<bool> {
        match self.s3.head_bucket().bucket(self.name).expected_bucket_owner(self.account).send().await {
            Ok(_) => Ok(true),
            Err(error) => match Failure::of(&error) {
                failure if failure.status == Some(404) => Ok(false),
                failure if failure.status == Some(403) => Err(self.foreign()),
                failure => Err(failure.into_error("look for the state bucket")),
            },
        }
    }

    async fn make(&self) -> Result<bool> {
        let mut request = self.s3.create_bucket().bucket(self.name);
        // us-east-1 is the one region that S3 does not take as a constraint.
        if self.region != "us-east-1" {
            let place = BucketLocationConstraint::from(self.region);
            request = request.create_bucket_configuration(
                CreateBucketConfiguration::builder().location_constraint(place).build(),
            );
        }
        match request.send().await {
            Ok(_) => Ok(true),
            Err(error) => match Failure::of(&error) {
                failure if failure.code == "BucketAlreadyOwnedByYou" => Ok(false),
                failure if failure.code == "BucketAlreadyExists" => Err(self.foreign()),
                failure => Err(failure.into_error("make the state bucket")),
            },
        }
    }

    fn foreign(&self) -> Error {
        Error::new(Code::BucketUnavailable, format!("the bucket `{}` belongs to another account", self.name))
            .hint("install cdkd with another name for the state bucket (parameter `StateBucket`)")
            .detail("bucket", self.name)
    }

    async fn encrypt(&self) -> Result<()> {
        let refused =
            |error| Error::new(Code::InternalError, format!("an encryption rule S3 does not take: {error}"));
        let default = ServerSideEncryptionByDefault::builder()
            .sse_algorithm(ServerSideEncryption::Aes256)
            .build()
            .map_err(refused)?;
        let rule = ServerSideEncryptionRule::builder()
            .apply_server_side_encryption_by_default(default)
            .bucket_key_enabled(true)
            .build();
        let configuration =
            ServerSideEncryptionConfiguration::builder().rules(rule).build().map_err(refused)?;
        self.s3
            .put_bucket_encryption()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .server_side_encryption_configuration(configuration)
            .send()
            .await
            .map_err(|error| Failure::of(&error).into_error("encrypt the state bucket"))?;
        Ok(())
    }

    /// Whoever is not of this account is refused, whatever any other policy allows.
    fn policy(&self) -> Value {
        let arn = format!("arn:{}:s3:::{}", self.partition, self.name);
        json!({
            "Version": "2012-10-17",
            "Statement": [{
                "Sid": "DenyExternalAccounts",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [arn, format!("{arn}/*")],
                "Condition": { "StringNotEquals": { "aws:PrincipalAccount": self.account } },
            }],
        })
    }

    /// Switches EventBridge on and leaves other notifications as they are.
    async fn notify(&self) -> Result<()> {
        let known = self
            .s3
            .get_bucket_notification_configuration()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .send()
            .await
            .map_err(|error| Failure::of(&error).into_error("read the notifications of the state bucket"))?;
        if known.event_bridge_configuration.is_some() {
            return Ok(());
        }
        let configuration = NotificationConfiguration::builder()
            .set_topic_configurations(known.topic_configurations)
            .set_queue_configurations(known.queue_configurations)
            .set_lambda_function_configurations(known.lambda_function_configurations)
            .event_bridge_configuration(EventBridgeConfiguration::builder().build())
            .build();
        self.s3
            .put_bucket_notification_configuration()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .notification_configuration(configuration)
            .send()
            .await
            .map_err(|error| {
                Failure::of(&error).into_error("send the events of the state bucket to EventBridge")
            })?;
        Ok(())
    }

    /// What S3 says of the bucket: region, versions, encryption, public access, policy, EventBridge.
    pub async fn describe(&self) -> Result<Value> {
        if !self.exists().await? {
            return Err(Error::new(
                Code::BucketUnavailable,
                format!("the state bucket `{}` does not exist", self.name),
            )
            .hint("start this function with `{\"action\": \"create\"}`")
            .detail("bucket", self.name));
        }
        let asked = |doing: &'static str| move |failure: Failure| failure.into_error(doing);
        let location = self
            .s3
            .get_bucket_location()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .send()
            .await
            .map_err(|error| asked("ask where the state bucket is")(Failure::of(&error)))?;
        let versioning = self
            .s3
            .get_bucket_versioning()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .send()
            .await
            .map_err(|error| asked("ask for the versioning of the state bucket")(Failure::of(&error)))?;
        let encryption = self
            .s3
            .get_bucket_encryption()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .send()
            .await;
        let rule = encryption
            .ok()
            .and_then(|answer| answer.server_side_encryption_configuration)
            .and_then(|configuration| configuration.rules.into_iter().next());
        let algorithm = rule
            .as_ref()
            .and_then(|rule| rule.apply_server_side_encryption_by_default.as_ref())
            .map(|default| default.sse_algorithm.as_str().to_owned());
        let access = self
            .s3
            .get_public_access_block()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .send()
            .await;
        let blocked =
            access.ok().and_then(|answer| answer.public_access_block_configuration).is_some_and(|block| {
                [
                    block.block_public_acls,
                    block.block_public_policy,
                    block.ignore_public_acls,
                    block.restrict_public_buckets,
                ]
                .iter()
                .all(|flag| *flag == Some(true))
            });
        let policy =
            self.s3.get_bucket_policy().bucket(self.name).expected_bucket_owner(self.account).send().await;
        let policy: Option<Value> = policy
            .ok()
            .and_then(|answer| answer.policy)
            .and_then(|policy| serde_json::from_str(&policy).ok());
        let events = self
            .s3
            .get_bucket_notification_configuration()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .send()
            .await
            .map_err(|error| asked("read the notifications of the state bucket")(Failure::of(&error)))?;
        let region = location.location_constraint.map(|place| place.as_str().to_owned());
        Ok(json!({
            "region": region.filter(|region| !region.is_empty()).unwrap_or_else(|| "us-east-1".to_owned()),
            "versioning": versioning.status.map(|status| status.as_str().to_owned()),
            "encryption": algorithm,
            "bucketKey": rule.and_then(|rule| rule.bucket_key_enabled).unwrap_or(false),
            "publicAccessBlocked": blocked,
            "deniesOtherAccounts": policy.is_some_and(|policy| policy == self.policy()),
            "eventBridge": events.event_bridge_configuration.is_some(),
        }))
    }
}
