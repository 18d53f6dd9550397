//! Buckets that cdkd makes: encrypted, private, refused to other accounts. That of records is versioned and tells
//! EventBridge what happens in it; those of assets are neither.
//!
//! Source: `seeds/asset-storage.txt`, section 5.

use aws_sdk_s3::Client;
use aws_sdk_s3::types::{
    BucketLocationConstraint, BucketVersioningStatus, CreateBucketConfiguration, Delete,
    EventBridgeConfiguration, NotificationConfiguration, ObjectIdentifier, PublicAccessBlockConfiguration,
    ServerSideEncryption, ServerSideEncryptionByDefault, ServerSideEncryptionConfiguration,
    ServerSideEncryptionRule, VersioningConfiguration,
};
use cdkd_core::name::Region;
use cdkd_core::{Code, Error, Result};
use serde_json::{Value, json};

use crate::edge::Invocation;
use crate::failure::Failure;

/// What a bucket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Records, locks, journals.
    State,
    /// Objects that are made of what they hold, and can be made again.
    Assets,
}

/// A bucket of this account, whether or not it is there.
pub struct Bucket<'a> {
    s3: Client,
    name: &'a str,
    account: &'a str,
    region: Region,
    purpose: Purpose,
}

/// What [`Bucket::ensure`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ensured {
    pub created: bool,
    /// A setting was missing, or `force` brought all to what they should be.
    pub configured: bool,
}

/// A setting that a bucket may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Access,
    Versioning,
    Encryption,
    Policy,
}

impl<'a> Bucket<'a> {
    /// The state bucket of this installation; made in this region if it is not there yet.
    pub async fn of_state(invocation: &'a Invocation) -> Result<Self> {
        let settings = &invocation.settings;
        Ok(Self {
            s3: invocation.aws.store.client(&settings.state_bucket).await?,
            name: &settings.state_bucket,
            account: settings.account.as_str(),
            region: settings.region.clone(),
            purpose: Purpose::State,
        })
    }

    /// The bucket of a region's assets.
    pub fn of_assets(invocation: &'a Invocation, name: &'a str, region: &Region) -> Self {
        Self {
            s3: invocation.aws.store.client_in(region),
            name,
            account: invocation.settings.account.as_str(),
            region: region.clone(),
            purpose: Purpose::Assets,
        }
    }

    fn what(&self) -> String {
        match self.purpose {
            Purpose::State => format!("the state bucket `{}`", self.name),
            Purpose::Assets => format!("the asset bucket `{}`", self.name),
        }
    }

    fn failed(&self, failure: Failure, doing: &str) -> Error {
        failure.into_error(&format!("{doing} {}", self.what())).detail("bucket", self.name)
    }

    /// Makes the bucket, or gives the one that is there what it lacks: another run may have died after making it. What
    /// is set otherwise stays, unless `force` is given.
    ///
    /// # Errors
    /// `BucketUnavailable` if another account owns the name: it is never adopted.
    pub async fn ensure(&self, force: bool) -> Result<Ensured> {
        let created = !self.exists().await? && self.make().await?;
        let missing = if created || force { self.all() } else { self.missing().await? };
        for setting in &missing {
            match setting {
                Setting::Access => self.block_access().await?,
                Setting::Versioning => self.version().await?,
                Setting::Encryption => self.encrypt().await?,
                Setting::Policy => self.refuse_others().await?,
            }
        }
        if self.purpose == Purpose::State {
            self.notify().await?;
        }
        Ok(Ensured { created, configured: !created && !missing.is_empty() })
    }

    fn all(&self) -> Vec<Setting> {
        let versioning = (self.purpose == Purpose::State).then_some(Setting::Versioning);
        [Setting::Access, Setting::Encryption, Setting::Policy].into_iter().chain(versioning).collect()
    }

    async fn missing(&self) -> Result<Vec<Setting>> {
        let found = self.settings().await?;
        // New buckets are encrypted by S3 itself, without a bucket key.
        let is_default = found.algorithm.as_deref().is_none_or(|it| it == "AES256" && !found.bucket_key);
        let mut missing = self.all();
        missing.retain(|setting| match setting {
            Setting::Access => found.access.is_none(),
            Setting::Versioning => found.versioning.is_none(),
            Setting::Encryption => is_default,
            Setting::Policy => found.policy.is_none(),
        });
        Ok(missing)
    }

    async fn block_access(&self) -> Result<()> {
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
            .map_err(|error| self.failed(Failure::of(&error), "block public access to"))?;
        Ok(())
    }

    async fn version(&self) -> Result<()> {
        self.s3
            .put_bucket_versioning()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .versioning_configuration(
                VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build(),
            )
            .send()
            .await
            .map_err(|error| self.failed(Failure::of(&error), "switch on versions of"))?;
        Ok(())
    }

    async fn refuse_others(&self) -> Result<()> {
        self.s3
            .put_bucket_policy()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .policy(self.policy().to_string())
            .send()
            .await
            .map_err(|error| self.failed(Failure::of(&error), "refuse other accounts the use of"))?;
        Ok(())
    }

    /// Whether it is there.
    ///
    /// # Errors
    /// `BucketUnavailable` if another account owns the name.
    pub async fn exists(&self) -> Result<bool> {
        match self.s3.head_bucket().bucket(self.name).expected_bucket_owner(self.account).send().await {
            Ok(_) => Ok(true),
            Err(error) => match Failure::of(&error) {
                failure if failure.status == Some(404) => Ok(false),
                failure if failure.status == Some(403) => Err(self.foreign()),
                // One of that name is in another region.
                failure if failure.status == Some(301) => Err(self.elsewhere()),
                failure => Err(self.failed(failure, "look for")),
            },
        }
    }

    async fn make(&self) -> Result<bool> {
        let mut request = self.s3.create_bucket().bucket(self.name);
        // us-east-1 is the one region that S3 does not take as a constraint.
        if self.region.as_str() != "us-east-1" {
            let place = BucketLocationConstraint::from(self.region.as_str());
            request = request.create_bucket_configuration(
                CreateBucketConfiguration::builder().location_constraint(place).build(),
            );
        }
        match request.send().await {
            Ok(_) => Ok(true),
            Err(error) => match Failure::of(&error) {
                failure if failure.code == "BucketAlreadyOwnedByYou" => Ok(false),
                failure if failure.code == "BucketAlreadyExists" => Err(self.foreign()),
                failure => Err(self.failed(failure, "make")),
            },
        }
    }

    fn foreign(&self) -> Error {
        let hint = match self.purpose {
            Purpose::State => {
                "install cdkd with another name for the state bucket (parameter `StateBucket`)".to_owned()
            }
            Purpose::Assets => format!(
                "nothing was written there; choose another name: start `cdkd-bootstrap` with {{\"region\": \"{}\", \
                 \"assetBucket\": \"…\"}}, after {{\"action\": \"destroy\", \"region\": \"{}\"}} if the region has a \
                 marker; or the role lacks `s3:ListBucket` on it",
                self.region, self.region
            ),
        };
        Error::new(Code::BucketUnavailable, format!("{} belongs to another account", self.what()))
            .hint(hint)
            .detail("bucket", self.name)
    }

    fn elsewhere(&self) -> Error {
        Error::new(
            Code::BucketUnavailable,
            format!("{} is in another region than {}", self.what(), self.region),
        )
        .hint("choose another name; what runs in a region takes its code from a bucket of that region")
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
            .map_err(|error| self.failed(Failure::of(&error), "encrypt"))?;
        Ok(())
    }

    /// Whoever is not of this account is refused, whatever any other policy allows.
    fn policy(&self) -> Value {
        let arn = format!("arn:{}:s3:::{}", self.region.partition().name, self.name);
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
            .map_err(|error| self.failed(Failure::of(&error), "read the notifications of"))?;
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
            .map_err(|error| self.failed(Failure::of(&error), "send to EventBridge the events of"))?;
        Ok(())
    }

    /// What is set; `None` where nothing is.
    async fn settings(&self) -> Result<Settings> {
        let absent = |failure: Failure, codes: &[&str], doing: &str| {
            if codes.contains(&failure.code.as_str()) { Ok(()) } else { Err(self.failed(failure, doing)) }
        };
        let (bucket, account) = (self.name, self.account);
        let mut found = Settings::default();
        let versioning = self
            .s3
            .get_bucket_versioning()
            .bucket(bucket)
            .expected_bucket_owner(account)
            .send()
            .await
            .map_err(|error| self.failed(Failure::of(&error), "ask for the versioning of"))?;
        found.versioning = versioning.status.map(|status| status.as_str().to_owned());
        match self.s3.get_bucket_encryption().bucket(bucket).expected_bucket_owner(account).send().await {
            Ok(answer) => {
                let rule = answer
                    .server_side_encryption_configuration
                    .and_then(|configuration| configuration.rules.into_iter().next());
                found.bucket_key = rule.as_ref().and_then(|rule| rule.bucket_key_enabled).unwrap_or(false);
                found.algorithm = rule
                    .and_then(|rule| rule.apply_server_side_encryption_by_default)
                    .map(|default| default.sse_algorithm.as_str().to_owned());
            }
            Err(error) => absent(
                Failure::of(&error),
                &["ServerSideEncryptionConfigurationNotFoundError"],
                "ask for the encryption of",
            )?,
        }
        match self.s3.get_public_access_block().bucket(bucket).expected_bucket_owner(account).send().await {
            Ok(answer) => {
                found.access = answer.public_access_block_configuration.map(|block| {
                    [
                        block.block_public_acls,
                        block.block_public_policy,
                        block.ignore_public_acls,
                        block.restrict_public_buckets,
                    ]
                    .iter()
                    .all(|flag| *flag == Some(true))
                });
            }
            Err(error) => absent(
                Failure::of(&error),
                &["NoSuchPublicAccessBlockConfiguration"],
                "ask for the public access to",
            )?,
        }
        match self.s3.get_bucket_policy().bucket(bucket).expected_bucket_owner(account).send().await {
            Ok(answer) => {
                found.policy = answer.policy.map(|policy| serde_json::from_str(&policy).unwrap_or_default());
            }
            Err(error) => absent(Failure::of(&error), &["NoSuchBucketPolicy"], "ask for the policy of")?,
        }
        Ok(found)
    }

    /// What S3 says of the bucket: region, versions, encryption, public access, policy, EventBridge; `None` if it is not
    /// there.
    pub async fn describe(&self) -> Result<Option<Value>> {
        if !self.exists().await? {
            return Ok(None);
        }
        let location = self
            .s3
            .get_bucket_location()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .send()
            .await
            .map_err(|error| self.failed(Failure::of(&error), "ask for the region of"))?;
        let events = self
            .s3
            .get_bucket_notification_configuration()
            .bucket(self.name)
            .expected_bucket_owner(self.account)
            .send()
            .await
            .map_err(|error| self.failed(Failure::of(&error), "read the notifications of"))?;
        let found = self.settings().await?;
        let region = location.location_constraint.map(|place| place.as_str().to_owned());
        Ok(Some(json!({
            "region": region.filter(|region| !region.is_empty()).unwrap_or_else(|| "us-east-1".to_owned()),
            "versioning": found.versioning,
            "encryption": found.algorithm,
            "bucketKey": found.bucket_key,
            "publicAccessBlocked": found.access.unwrap_or(false),
            "deniesOtherAccounts": found.policy.is_some_and(|policy| policy == self.policy()),
            "eventBridge": events.event_bridge_configuration.is_some(),
        })))
    }

    /// Deletes all objects, with all versions, as long as `go_on` says; whether none is left.
    pub async fn empty(&self, go_on: impl Fn() -> bool) -> Result<bool> {
        loop {
            if !go_on() {
                return Ok(false);
            }
            let page = self
                .s3
                .list_object_versions()
                .bucket(self.name)
                .expected_bucket_owner(self.account)
                .send()
                .await
                .map_err(|error| self.failed(Failure::of(&error), "list the objects of"))?;
            let versions = page.versions.unwrap_or_default().into_iter().map(|it| (it.key, it.version_id));
            let markers =
                page.delete_markers.unwrap_or_default().into_iter().map(|it| (it.key, it.version_id));
            let objects: Vec<ObjectIdentifier> = versions
                .chain(markers)
                .filter_map(|(key, version)| {
                    ObjectIdentifier::builder().key(key?).set_version_id(version).build().ok()
                })
                .collect();
            if objects.is_empty() {
                return Ok(true);
            }
            let delete = Delete::builder().set_objects(Some(objects)).quiet(true).build();
            let delete = delete.map_err(|error| {
                Error::new(Code::InternalError, format!("a deletion S3 does not take: {error}"))
            })?;
            let answer = self
                .s3
                .delete_objects()
                .bucket(self.name)
                .expected_bucket_owner(self.account)
                .delete(delete)
                .send()
                .await
                .map_err(|error| self.failed(Failure::of(&error), "empty"))?;
            if let Some(error) = answer.errors.unwrap_or_default().into_iter().next() {
                let (key, said) = (error.key.unwrap_or_default(), error.message.unwrap_or_default());
                return Err(Error::new(
                    Code::ProvisioningFailed,
                    format!("`{key}` of {} could not be deleted: {said}", self.what()),
                )
                .detail("bucket", self.name)
                .detail("awsCode", error.code.unwrap_or_default()));
            }
        }
    }

    /// Deletes the bucket, which has to be empty; that it is gone already is no error.
    pub async fn delete(&self) -> Result<()> {
        match self.s3.delete_bucket().bucket(self.name).expected_bucket_owner(self.account).send().await {
            Ok(_) => Ok(()),
            Err(error) => match Failure::of(&error) {
                failure if failure.status == Some(404) => Ok(()),
                failure => Err(self.failed(failure, "delete")),
            },
        }
    }
}

/// Settings of a bucket that is there.
#[derive(Debug, Default)]
struct Settings {
    versioning: Option<String>,
    algorithm: Option<String>,
    bucket_key: bool,
    /// Whether all public access is blocked.
    access: Option<bool>,
    policy: Option<Value>,
}
