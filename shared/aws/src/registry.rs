//! The repository of a region's container images.
//!
//! Source: Amazon ECR API Reference; `seeds/asset-storage.txt`, section 5.

use aws_sdk_ecr::Client;
use aws_sdk_ecr::config::{Builder, Region as AwsRegion};
use aws_sdk_ecr::types::{EncryptionConfiguration, EncryptionType, ImageTagMutability};
use cdkd_core::name::Region;
use cdkd_core::{Code, Error, Result};
use serde_json::{Value, json};

use crate::edge::Invocation;
use crate::failure::Failure;

/// A repository of this account, whether or not it is there.
pub struct Repository<'a> {
    ecr: Client,
    name: &'a str,
    account: &'a str,
}

impl<'a> Repository<'a> {
    pub fn new(invocation: &'a Invocation, name: &'a str, region: &Region) -> Self {
        let config = Builder::from(&invocation.aws.config).region(AwsRegion::new(region.to_string()));
        Self { ecr: Client::from_conf(config.build()), name, account: invocation.settings.account.as_str() }
    }

    fn failed(&self, failure: Failure, doing: &str) -> Error {
        failure.into_error(&format!("{doing} the repository `{}`", self.name)).detail("repository", self.name)
    }

    /// `{mutability, encryption}`; `None` if it is not there.
    pub async fn describe(&self) -> Result<Option<Value>> {
        let asked = self
            .ecr
            .describe_repositories()
            .registry_id(self.account)
            .repository_names(self.name)
            .send()
            .await;
        let answer = match asked {
            Ok(answer) => answer,
            Err(error) => {
                let failure = Failure::of(&error);
                if failure.code == "RepositoryNotFoundException" {
                    return Ok(None);
                }
                return Err(self.failed(failure, "look for"));
            }
        };
        Ok(answer.repositories.unwrap_or_default().into_iter().next().map(|found| {
            let encryption = found.encryption_configuration.map(|it| it.encryption_type.as_str().to_owned());
            json!({
                "mutability": found.image_tag_mutability.map(|it| it.as_str().to_owned()),
                "encryption": encryption,
            })
        }))
    }

    pub async fn exists(&self) -> Result<bool> {
        Ok(self.describe().await?.is_some())
    }

    /// Makes the repository: tags are hashes of what they name, so none ever moves. Whether it was not there; one that is
    /// stays as it is, unless `force` makes its tags immutable.
    pub async fn ensure(&self, force: bool) -> Result<bool> {
        let encryption = EncryptionConfiguration::builder().encryption_type(EncryptionType::Aes256).build();
        let encryption = encryption.map_err(|error| {
            Error::new(Code::InternalError, format!("an encryption ECR does not take: {error}"))
        })?;
        if !self.exists().await? {
            let made = self
                .ecr
                .create_repository()
                .registry_id(self.account)
                .repository_name(self.name)
                .image_tag_mutability(ImageTagMutability::Immutable)
                .encryption_configuration(encryption)
                .send()
                .await;
            return match made {
                Ok(_) => Ok(true),
                Err(error) => match Failure::of(&error) {
                    // Another bootstrap made it at the same time.
                    failure if failure.code == "RepositoryAlreadyExistsException" => Ok(false),
                    failure => Err(self.failed(failure, "make")),
                },
            };
        }
        if force {
            self.ecr
                .put_image_tag_mutability()
                .registry_id(self.account)
                .repository_name(self.name)
                .image_tag_mutability(ImageTagMutability::Immutable)
                .send()
                .await
                .map_err(|error| self.failed(Failure::of(&error), "make immutable the tags of"))?;
        }
        Ok(false)
    }

    /// Deletes the repository with its images; that it is gone already is no error.
    pub async fn delete(&self) -> Result<()> {
        let gone = self
            .ecr
            .delete_repository()
            .registry_id(self.account)
            .repository_name(self.name)
            .force(true)
            .send()
            .await;
        match gone {
            Ok(_) => Ok(()),
            Err(error) => match Failure::of(&error) {
                failure if failure.code == "RepositoryNotFoundException" => Ok(()),
                failure => Err(self.failed(failure, "delete")),
            },
        }
    }
}
