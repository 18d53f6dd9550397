//! Names that are parsed once, at the edge, and trusted from then on.

use std::fmt;
use std::str::FromStr;

use crate::error::{Code, Error};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:expr, $rule:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let check: fn(&str) -> Option<String> = $check;
                check(text).map(Self).ok_or_else(|| {
                    Error::new(Code::InvalidInput, format!("`{text}` is no {}", $rule))
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

fn kept(ok: bool, text: &str) -> Option<String> {
    ok.then(|| text.to_owned())
}

fn stack_segment(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        && text.len() <= 128
}

name!(
    /// A stack's name: `[A-Za-z][A-Za-z0-9-]*`, at most 128 characters (AWS: `CreateStack`); a nested stack's
    /// record is `Parent~LogicalId`, at any depth (DESIGN 8).
    StackName,
    |text| kept(text.len() <= 512 && text.split('~').all(stack_segment), text),
    "stack name (a letter, then letters, digits and `-`, at most 128 characters)"
);

name!(
    /// A region, in lower case: `US-EAST-1` is the region `us-east-1` (rule A15).
    Region,
    |text| {
        let lower = text.to_ascii_lowercase();
        let parts: Vec<&str> = lower.split('-').collect();
        let ok = parts.len() >= 3
            && parts.iter().all(|p| !p.is_empty() && p.chars().all(|c| c.is_ascii_alphanumeric()))
            && parts.last().is_some_and(|p| p.chars().all(|c| c.is_ascii_digit()));
        ok.then_some(lower)
    },
    "region (such as `eu-west-1`)"
);

name!(
    /// An account id: 12 digits.
    Account,
    |text| kept(text.len() == 12 && text.chars().all(|c| c.is_ascii_digit()), text),
    "account id (12 digits)"
);

name!(
    /// A logical id: letters and digits, at most 255.
    LogicalId,
    |text| kept(!text.is_empty() && text.len() <= 255 && text.chars().all(|c| c.is_ascii_alphanumeric()), text),
    "logical id (letters and digits, at most 255)"
);

name!(
    /// The ARN of an IAM role, whatever its path: `arn:{partition}:iam::{account}:role/{path}{name}` (rule G9). Source:
    /// IAM User Guide, "IAM identifiers", and `CreateRole` for what paths and names are made of.
    RoleArn,
    |text| kept(is_role(text), text),
    "ARN of a role (such as `arn:aws:iam::111122223333:role/reader`)"
);

fn is_role(arn: &str) -> bool {
    // A path may hold colons.
    let fields: Vec<&str> = arn.splitn(6, ':').collect();
    let ["arn", partition, "iam", "", account, resource] = fields.as_slice() else { return false };
    // Partitions are not listed, so that a new one needs no change here.
    let partition = partition
        .strip_prefix("aws")
        .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
    let role = resource.strip_prefix("role/").is_some_and(|role| {
        let name = role.rsplit('/').next().unwrap_or_default();
        role.chars().all(|c| c.is_ascii_graphic())
            && (1..=64).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c))
    });
    partition && account.parse::<Account>().is_ok() && role
}

impl RoleArn {
    /// The name of the partition, such as `aws`.
    pub fn partition(&self) -> &str {
        self.field(1)
    }

    /// The account that the role belongs to.
    pub fn account(&self) -> Account {
        Account(self.field(4).to_owned())
    }

    fn field(&self, index: usize) -> &str {
        self.0.split(':').nth(index).unwrap_or_default()
    }
}

impl StackName {
    /// The stack that owns this nested record, if it is one.
    pub fn parent(&self) -> Option<StackName> {
        self.0.rsplit_once('~').map(|(parent, _)| StackName(parent.to_owned()))
    }

    /// The stack nested in this one under a logical id.
    #[must_use]
    pub fn nested(&self, logical_id: &str) -> StackName {
        StackName(format!("{}~{logical_id}", self.0))
    }
}

/// A partition: what stands second in an ARN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    pub name: &'static str,
    /// The value of `AWS::URLSuffix`.
    pub url_suffix: &'static str,
}

/// By prefix of the region's name; the first that fits. Source: botocore's `endpoints.json` (regionRegex, dnsSuffix).
const PARTITIONS: &[(&str, Partition)] = &[
    ("cn-", Partition { name: "aws-cn", url_suffix: "amazonaws.com.cn" }),
    ("us-gov-", Partition { name: "aws-us-gov", url_suffix: "amazonaws.com" }),
    ("us-isob-", Partition { name: "aws-iso-b", url_suffix: "sc2s.sgov.gov" }),
    ("us-isof-", Partition { name: "aws-iso-f", url_suffix: "csp.hci.ic.gov" }),
    ("eu-isoe-", Partition { name: "aws-iso-e", url_suffix: "cloud.adc-e.uk" }),
    ("us-iso-", Partition { name: "aws-iso", url_suffix: "c2s.ic.gov" }),
    ("eusc-", Partition { name: "aws-eusc", url_suffix: "amazonaws.eu" }),
    ("", Partition { name: "aws", url_suffix: "amazonaws.com" }),
];

impl Region {
    /// The partition that the region belongs to.
    pub fn partition(&self) -> Partition {
        PARTITIONS
            .iter()
            .find(|(prefix, _)| self.0.starts_with(prefix))
            .map_or(Partition { name: "aws", url_suffix: "amazonaws.com" }, |(_, partition)| *partition)
    }
}

/// Which record: a stack in a region. Sorted as its key sorts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    pub stack: StackName,
    pub region: Region,
}

impl RecordKey {
    pub fn new(stack: StackName, region: Region) -> Self {
        Self { stack, region }
    }

    /// Parses both names.
    pub fn parse(stack: &str, region: &str) -> Result<Self, Error> {
        Ok(Self { stack: stack.parse()?, region: region.parse()? })
    }

    /// `{prefix}/{stack}/{region}/state.json` (DESIGN 3).
    pub fn state(&self, prefix: &str) -> String {
        format!("{prefix}/{}/{}/state.json", self.stack, self.region)
    }

    /// `{prefix}/{stack}/{region}/lock.json`
    pub fn lock(&self, prefix: &str) -> String {
        format!("{prefix}/{}/{}/lock.json", self.stack, self.region)
    }

    /// `{prefix}/{stack}/state.json`, where version 1 lives.
    pub fn legacy_state(&self, prefix: &str) -> String {
        format!("{prefix}/{}/state.json", self.stack)
    }

    /// `cdkd-journal/{prefix}/{stack}/{region}/`, the folder of the journal.
    pub fn journal(&self, prefix: &str) -> String {
        format!("cdkd-journal/{prefix}/{}/{}/", self.stack, self.region)
    }

    /// `cdkd-templates/{prefix}/{stack}/{region}/`, the folder of the deployed template.
    pub fn templates(&self, prefix: &str) -> String {
        format!("cdkd-templates/{prefix}/{}/{}/", self.stack, self.region)
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.stack, self.region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_names() {
        for good in ["A", "Web-App2", "Parent~Child", "Parent~Child~Grand"] {
            assert!(good.parse::<StackName>().is_ok(), "{good}");
        }
        for bad in ["", "1A", "A_b", "A/b", "A~", "~A", "-A", &"A".repeat(129)] {
            assert!(bad.parse::<StackName>().is_err(), "{bad}");
        }
        let nested: StackName = "P~C~G".parse().unwrap();
        assert_eq!(nested.parent().unwrap().as_str(), "P~C");
        assert_eq!(nested.parent().unwrap().nested("G"), nested);
    }

    #[test]
    fn a15_a_region_in_upper_case_is_the_region() {
        assert_eq!("US-EAST-1".parse::<Region>().unwrap().as_str(), "us-east-1");
        for bad in ["", "us", "us-east", "us-east-x", "us--1", "agnostic"] {
            assert!(bad.parse::<Region>().is_err(), "{bad}");
        }
    }

    #[test]
    fn g9_roles_of_every_partition_and_path_and_nothing_else() {
        for good in [
            "arn:aws:iam::111122223333:role/reader",
            "arn:aws-cn:iam::111122223333:role/reader",
            "arn:aws-us-gov:iam::111122223333:role/reader",
            "arn:aws-iso-b:iam::111122223333:role/reader",
            "arn:aws-eusc:iam::111122223333:role/reader",
            "arn:aws-new2:iam::111122223333:role/reader",
            "arn:aws:iam::111122223333:role/a/b:c/reader_+=,.@-",
            "arn:aws:iam::111122223333:role/aws-service-role/ecs.amazonaws.com/AWSServiceRoleForECS",
        ] {
            let role: RoleArn = good.parse().unwrap();
            assert_eq!(role.account().as_str(), "111122223333");
            assert!(good.starts_with(&format!("arn:{}:iam:", role.partition())));
        }
        let long = format!("arn:aws:iam::111122223333:role/{}", "r".repeat(65));
        for bad in [
            "",
            "arn:aws:iam::111122223333:user/me",
            "arn:aws:iam::111122223333:root",
            "arn:aws:iam::11112222333:role/reader",
            "arn:aws:iam::1111222233334:role/reader",
            "arn:aws:iam::11112222333x:role/reader",
            "arn:aws:iam:us-east-1:111122223333:role/reader",
            "arn:aws:sts::111122223333:assumed-role/reader/me",
            "arn:aws:s3:::role/reader",
            "arn:azure:iam::111122223333:role/reader",
            "arn:AWS:iam::111122223333:role/reader",
            "arn:aws:iam::111122223333:role/",
            "arn:aws:iam::111122223333:role/a/",
            "arn:aws:iam::111122223333:role/a b",
            "arn:aws:iam::111122223333:roles/reader",
            " arn:aws:iam::111122223333:role/reader",
            &long,
        ] {
            assert!(bad.parse::<RoleArn>().is_err(), "{bad}");
        }
    }

    #[test]
    fn partitions_by_region() {
        let table = [
            ("us-east-1", "aws", "amazonaws.com"),
            ("cn-north-1", "aws-cn", "amazonaws.com.cn"),
            ("us-gov-west-1", "aws-us-gov", "amazonaws.com"),
            ("us-iso-east-1", "aws-iso", "c2s.ic.gov"),
            ("us-isob-east-1", "aws-iso-b", "sc2s.sgov.gov"),
            ("us-isof-south-1", "aws-iso-f", "csp.hci.ic.gov"),
            ("eu-isoe-west-1", "aws-iso-e", "cloud.adc-e.uk"),
            ("eusc-de-east-1", "aws-eusc", "amazonaws.eu"),
        ];
        for (region, name, suffix) in table {
            let partition = region.parse::<Region>().unwrap().partition();
            assert_eq!((partition.name, partition.url_suffix), (name, suffix));
        }
    }

    #[test]
    fn keys_are_those_of_the_command_line_tool() {
        let key = RecordKey::parse("Web", "us-east-1").unwrap();
        assert_eq!(key.state("cdkd"), "cdkd/Web/us-east-1/state.json");
        assert_eq!(key.lock("cdkd"), "cdkd/Web/us-east-1/lock.json");
        assert_eq!(key.journal("cdkd"), "cdkd-journal/cdkd/Web/us-east-1/");
    }
}
