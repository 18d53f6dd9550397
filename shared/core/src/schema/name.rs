//! Physical names: deterministic, so that a create whose answer was lost is found again (DESIGN 8, "Names").

use std::fmt;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::path::scalar;
use super::{TypeSchema, read_strings, resolve};
use crate::name::{Account, LogicalId, Region, StackName};

/// Base32 digits of a name's hash: 50 bits.
const HASH_LENGTH: usize = 10;
/// Shorter names than this have no room for a hash and enough of the rest to know them by.
const SHORTEST: usize = 16;

/// The optional name of a type, and what it may hold. A name consists of letters, digits and the separator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRule {
    /// The property: `QueueName`.
    pub property: String,
    /// In characters.
    pub max_length: usize,
    /// Capital letters are not allowed.
    pub lower_case: bool,
    /// What may stand between words; `None` if nothing may.
    pub separator: Option<char>,
    /// An ending that the name must have if a property is true.
    pub suffix: Option<Suffix>,
    /// Beginnings that the service keeps for itself, in lower case.
    pub reserved: &'static [&'static str],
    /// Properties that ask for another way of naming; with any of them cdkd sets no name.
    pub unless: &'static [&'static str],
}

/// `.fifo`, if `FifoQueue` is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suffix {
    pub when: &'static str,
    pub text: &'static str,
}

/// What a physical name is made of.
#[derive(Clone, Debug)]
pub struct NameSeed<'a> {
    pub account: &'a Account,
    pub region: &'a Region,
    pub stack: &'a StackName,
    /// `AWS::StackId`: a stack that is deployed anew gets new names, since a retained resource may still hold the old
    /// ones, and some services keep a deleted name for a while (SQS for a minute).
    pub stack_id: &'a str,
    pub logical_id: &'a LogicalId,
    /// 0 at first, one more with each replacement.
    pub generation: u64,
}

/// The name that cdkd gives a resource whose template gives it none: the property and its value.
///
/// `{stack}-{logicalId}-{hash of the seed}`, cut and cased as the type wants it; the hash is never cut. `None` if
/// the type has no optional name that may be set, or if `properties` already set it.
pub fn physical_name(
    schema: &TypeSchema,
    seed: &NameSeed<'_>,
    properties: &Value,
) -> Option<(String, String)> {
    let rule = schema.name.as_ref()?;
    let given = |property: &str| properties.get(property).is_some_and(|value| !value.is_null());
    if given(&rule.property) || rule.unless.iter().any(|property| given(property)) {
        return None;
    }
    Some((rule.property.clone(), rule.compose(seed, properties)?))
}

impl NameRule {
    fn compose(&self, seed: &NameSeed<'_>, properties: &Value) -> Option<String> {
        let suffix = self
            .suffix
            .filter(|suffix| properties.get(suffix.when).and_then(scalar).as_deref() == Some("true"))
            .map_or("", |suffix| suffix.text);
        let separator = self.separator.map(String::from).unwrap_or_default();
        let room = self.max_length.checked_sub(HASH_LENGTH + separator.len() + suffix.len())?;
        if room == 0 {
            return None;
        }

        let mut stack = self.clean(seed.stack.as_str());
        if self.reserved.iter().any(|taken| stack.to_ascii_lowercase().starts_with(taken)) {
            stack = format!("cdkd{separator}{stack}");
        }
        let logical_id = self.clean(seed.logical_id.as_str());
        // The stack's name gives way to the logical id, down to half of the room.
        let room_for_names = room.saturating_sub(separator.len());
        let for_stack = room_for_names.saturating_sub(logical_id.len()).max(room_for_names / 2);
        let stack = self.cut(&stack, for_stack);
        let logical_id = self.cut(&logical_id, room_for_names - stack.len());

        let words = [stack, logical_id, &hash(seed)];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        Some(words.join(&separator) + suffix)
    }

    /// Every run of other characters becomes one separator: names with `--` are refused by some services.
    fn clean(&self, text: &str) -> String {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let clean = words.collect::<Vec<_>>().join(&self.separator.map(String::from).unwrap_or_default());
        if self.lower_case { clean.to_ascii_lowercase() } else { clean }
    }

    fn cut<'t>(&self, text: &'t str, length: usize) -> &'t str {
        let cut = text.get(..length).unwrap_or(text);
        self.separator.map_or(cut, |separator| cut.trim_end_matches(separator))
    }

    /// The name that a schema offers: optional, a string, set once and for all, and of characters that are known.
    ///
    /// Where the schema does not say which characters, cdkd sets no name (AWS then makes one) unless
    /// [`review`] knows better: a name that is refused would break a template that is right.
    pub(super) fn from_schema(type_name: &str, schema: &Value) -> Option<Self> {
        let resource = type_name.rsplit("::").next()?.to_ascii_lowercase();
        let top = |key: &str| -> Vec<String> {
            read_strings(schema.get(key))
                .iter()
                .filter_map(|pointer| pointer.strip_prefix("/properties/"))
                .filter(|path| !path.contains('/'))
                .map(str::to_owned)
                .collect()
        };
        let fixed = [top("createOnlyProperties"), top("primaryIdentifier")].concat();
        let not_ours = [top("readOnlyProperties"), read_strings(schema.get("required"))].concat();
        let choices: String = ["oneOf", "anyOf", "allOf", "requiredXor", "requiredOr", "dependentExcluded"]
            .iter()
            .filter_map(|key| Some(schema.get(key)?.to_string()))
            .collect();

        // `QueueName` before `Name` before the name of a part (`FilterName` of a metric filter).
        let rank = |property: &str| {
            let property = property.to_ascii_lowercase();
            let stem = property.strip_suffix("name")?;
            match stem {
                _ if stem == resource => Some(0),
                "" => Some(1),
                _ if resource.ends_with(stem) => Some(2),
                _ => None,
            }
        };
        let mut candidates: Vec<(usize, &String)> = fixed
            .iter()
            .filter(|property| !not_ours.contains(property) && !choices.contains(&format!("\"{property}\"")))
            .filter_map(|property| Some((rank(property)?, property)))
            .collect();
        candidates.sort();
        let (_, property) = candidates.first()?;
        let node = resolve(schema, schema.get("properties")?.get(property)?)?;
        if node.get("type")?.as_str()? != "string" || node.get("enum").is_some() {
            return None;
        }
        let pattern = Pattern::parse(node.get("pattern")?.as_str()?)?;
        let limit = |key: &str| node.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let max_length = pattern.max_length.into_iter().chain(limit("maxLength")).min()?;
        if max_length < SHORTEST || limit("minLength").is_some_and(|min| min > SHORTEST) {
            return None;
        }
        Some(Self {
            property: (*property).clone(),
            max_length,
            lower_case: pattern.lower_case,
            separator: pattern.separator,
            suffix: None,
            reserved: &[],
            unless: &[],
        })
    }

    /// Reads what [`fmt::Display`] writes.
    pub(super) fn parse_field(text: &str) -> Option<Self> {
        let mut words = text.split(':');
        let property = words.next()?.to_owned();
        let max_length = words.next()?.parse().ok()?;
        let form = words.next()?;
        let lower_case = form.starts_with('a');
        let separator = form.chars().nth(1);
        Some(Self { property, max_length, lower_case, separator, suffix: None, reserved: &[], unless: &[] })
    }
}

/// `QueueName:80:A-`: property, length, `A` or `a` (lower case only) and the separator.
impl fmt::Display for NameRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = if self.lower_case { 'a' } else { 'A' };
        let separator = self.separator.map(String::from).unwrap_or_default();
        write!(f, "{}:{}:{case}{separator}", self.property, self.max_length)
    }
}

/// The first 50 bits of SHA-256 over the parts of the seed, one a line (none holds a line break), in lower-case
/// base32.
fn hash(seed: &NameSeed<'_>) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let NameSeed { account, region, stack, stack_id, logical_id, generation } = seed;
    let digest =
        Sha256::digest(format!("{account}\n{region}\n{stack}\n{stack_id}\n{logical_id}\n{generation}"));
    let bits = digest.iter().take(8).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    (0..HASH_LENGTH).map(|i| char::from(DIGITS[((bits >> (59 - 5 * i)) & 31) as usize])).collect()
}

/// `{stack}-{logicalId}-{hash}` for what has no limits of its own.
pub(super) fn plain_name(seed: &NameSeed<'_>) -> String {
    format!("{}-{}-{}", seed.stack.as_str().replace('~', "-"), seed.logical_id, hash(seed))
}

/// What a regular expression of a schema allows, as far as names are concerned.
struct Pattern {
    /// `None`: no limit in the pattern.
    max_length: Option<usize>,
    lower_case: bool,
    separator: Option<char>,
}

/// A set of ASCII characters.
#[derive(Clone, Copy)]
struct Set(u128);

impl Set {
    fn of(text: &str) -> Self {
        Self(text.bytes().filter(u8::is_ascii).fold(0, |set, byte| set | 1 << byte))
    }

    fn holds(self, text: &str) -> bool {
        let wanted = Self::of(text).0;
        self.0 & wanted == wanted
    }
}

const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
const UPPER: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const DIGITS: &str = "0123456789";

impl Pattern {
    /// Understands a row of character classes with quantifiers, `^[a-z][a-z0-9-]{1,30}$`, which most patterns
    /// are; `None` for anything else (groups, alternatives, negated classes, look-ahead).
    fn parse(pattern: &str) -> Option<Self> {
        let mut rest = pattern.trim_start_matches('^').trim_end_matches('$');
        let mut row: Vec<(Set, Option<usize>)> = Vec::new();
        while !rest.is_empty() {
            let (set, after) = class(rest)?;
            let (most, after) = quantifier(after)?;
            row.push((set, most));
            rest = after;
        }
        // Our names start with a letter and end with a letter or digit, and hold all of these in between.
        let inner =
            |wanted: &str| row.iter().filter(|(_, most)| *most != Some(1)).all(|(set, _)| set.holds(wanted));
        let everywhere = |wanted: &str| row.iter().all(|(set, _)| set.holds(wanted));
        let digits = row.iter().skip(1).all(|(set, _)| set.holds(DIGITS)) && inner(DIGITS);
        if row.is_empty() || !digits || !everywhere(LOWER) {
            return None;
        }
        Some(Self {
            max_length: row.iter().map(|(_, most)| *most).sum(),
            lower_case: !everywhere(UPPER),
            separator: ['-', '_'].into_iter().find(|c| inner(&c.to_string())),
        })
    }
}

/// Reads `[…]` or `\w`.
fn class(text: &str) -> Option<(Set, &str)> {
    if let Some(rest) = text.strip_prefix("\\w") {
        return Some((Set::of(&[LOWER, UPPER, DIGITS, "_"].concat()), rest));
    }
    let mut chars = text.strip_prefix('[')?.chars().peekable();
    let (mut set, mut last, mut first) = (0_u128, None::<char>, true);
    loop {
        let c = chars.next()?;
        match c {
            '^' if first => return None,
            ']' => break,
            '\\' => match chars.next()? {
                'w' => set |= Set::of(&[LOWER, UPPER, DIGITS, "_"].concat()).0,
                'd' => set |= Set::of(DIGITS).0,
                's' => set |= Set::of(" ").0,
                escaped if escaped.is_ascii_alphanumeric() => return None,
                escaped => set |= Set::of(&escaped.to_string()).0,
            },
            '-' if last.is_some() && chars.peek().is_some_and(|next| *next != ']' && *next != '\\') => {
                let (from, to) = (last?, chars.next()?);
                set |= (from..=to).fold(0, |set, c| set | Set::of(&c.to_string()).0);
                last = None;
                first = false;
                continue;
            }
            c => set |= Set::of(&c.to_string()).0,
        }
        last = (c != '\\').then_some(c);
        first = false;
    }
    Some((Set(set), text.get(text.len() - chars.collect::<String>().len()..)?))
}

/// Reads `*`, `+`, `{n}`, `{n,}`, `{n,m}` or nothing: how often at most, `None` for any number.
fn quantifier(text: &str) -> Option<(Option<usize>, &str)> {
    if let Some(rest) = text.strip_prefix(['*', '+']) {
        return Some((None, rest));
    }
    let Some(rest) = text.strip_prefix('{') else { return Some((Some(1), text)) };
    let (body, rest) = rest.split_once('}')?;
    let most = match body.split_once(',') {
        Some((_, "")) => None,
        Some((_, most)) => Some(most.parse().ok()?),
        None => Some(body.parse().ok()?),
    };
    Some((most, rest))
}

/// Adds what the schema does not say about the type's name: see [`REVIEWED`] and [`NEVER`].
pub(super) fn review(schema: &mut TypeSchema) {
    let type_name = schema.type_name.as_str();
    if NEVER.contains(&type_name) {
        schema.name = None;
        return;
    }
    if let Some(&(_, property, max_length, form)) = REVIEWED.iter().find(|(name, ..)| *name == type_name) {
        schema.name = Some(NameRule {
            property: property.to_owned(),
            max_length,
            lower_case: form.starts_with('a'),
            separator: form.chars().nth(1),
            suffix: None,
            reserved: &[],
            unless: &[],
        });
    }
    if let Some(rule) = &mut schema.name {
        rule.suffix = SUFFIXES.iter().find(|(name, _)| *name == type_name).map(|(_, suffix)| *suffix);
        rule.unless = UNLESS.iter().find(|(name, _)| *name == type_name).map_or(&[], |(_, names)| *names);
        rule.reserved = RESERVED.iter().find(|(name, _)| *name == type_name).map_or(&[], |(_, words)| *words);
    }
}

/// Types whose name means something to others, so that no made-up one will do.
const NEVER: &[&str] = &[
    // Part of the URL.
    "AWS::ApiGateway::Stage",
    // People's names.
    "AWS::Cognito::UserPoolUser",
    "AWS::IdentityStore::User",
    // The name is written a second time, inside `DatabaseInput`, `TableInput`.
    "AWS::Glue::Database",
    "AWS::Glue::Table",
    // Domain names.
    "AWS::Route53::HostedZone",
    "AWS::ServiceDiscovery::Service",
    // The zone is part of the name.
    "AWS::S3Express::AccessPoint",
    "AWS::S3Express::DirectoryBucket",
    // A thing connects under its name; its certificate and policies may hold it.
    "AWS::IoT::Thing",
];

const FIFO_QUEUE: Suffix = Suffix { when: "FifoQueue", text: ".fifo" };
const FIFO_TOPIC: Suffix = Suffix { when: "FifoTopic", text: ".fifo" };

const SUFFIXES: &[(&str, Suffix)] = &[("AWS::SNS::Topic", FIFO_TOPIC), ("AWS::SQS::Queue", FIFO_QUEUE)];

const UNLESS: &[(&str, &[&str])] = &[("AWS::S3::Bucket", &["BucketNamePrefix", "BucketNamespace"])];

/// From the services' API references.
const RESERVED: &[(&str, &[&str])] = &[
    ("AWS::Config::ConfigRule", &["aws"]),
    ("AWS::EC2::SecurityGroup", &["sg-"]),
    ("AWS::ECS::CapacityProvider", &["aws", "ecs", "fargate"]),
    ("AWS::ElasticLoadBalancingV2::LoadBalancer", &["internal-"]),
    ("AWS::Logs::LogGroup", &["aws/"]),
    ("AWS::S3::Bucket", &["xn-", "sthree-", "amzn-s3-demo-"]),
    ("AWS::SSM::Document", &["aws", "amazon", "amzn"]),
    ("AWS::SSM::Parameter", &["aws", "ssm"]),
    ("AWS::VpcLattice::Service", &["svc-"]),
    ("AWS::VpcLattice::ServiceNetwork", &["servicenetwork-"]),
    ("AWS::VpcLattice::TargetGroup", &["tg-"]),
];

/// Names whose limits the schema leaves out or gives too widely (a pattern that also takes ARNs): property, longest,
/// `A` or `a` for lower case only, and the separator. From the services' API references. RDS and its kin store
/// identifiers in lower case, so that any other would read back changed.
const REVIEWED: &[(&str, &str, usize, &str)] = &[
    ("AWS::AutoScaling::AutoScalingGroup", "AutoScalingGroupName", 255, "A-"),
    ("AWS::AutoScaling::LaunchConfiguration", "LaunchConfigurationName", 255, "A-"),
    ("AWS::Batch::ComputeEnvironment", "ComputeEnvironmentName", 128, "A-"),
    ("AWS::Batch::JobDefinition", "JobDefinitionName", 128, "A-"),
    ("AWS::Batch::JobQueue", "JobQueueName", 128, "A-"),
    ("AWS::Batch::SchedulingPolicy", "Name", 128, "A-"),
    ("AWS::CloudTrail::Trail", "TrailName", 128, "A-"),
    ("AWS::CloudWatch::Alarm", "AlarmName", 255, "A-"),
    ("AWS::CloudWatch::CompositeAlarm", "AlarmName", 255, "A-"),
    ("AWS::CloudWatch::Dashboard", "DashboardName", 255, "A-"),
    ("AWS::CloudWatch::MetricStream", "Name", 255, "A-"),
    ("AWS::CodePipeline::Pipeline", "Name", 100, "A-"),
    ("AWS::Config::ConfigRule", "ConfigRuleName", 128, "A-"),
    ("AWS::DocDB::DBClusterParameterGroup", "Name", 255, "a-"),
    ("AWS::DocDB::DBSubnetGroup", "DBSubnetGroupName", 255, "a-"),
    ("AWS::DynamoDB::GlobalTable", "TableName", 255, "A-"),
    ("AWS::DynamoDB::Table", "TableName", 255, "A-"),
    ("AWS::EC2::LaunchTemplate", "LaunchTemplateName", 128, "A-"),
    ("AWS::EC2::SecurityGroup", "GroupName", 255, "A-"),
    ("AWS::ECR::Repository", "RepositoryName", 256, "a-"),
    ("AWS::ECS::CapacityProvider", "Name", 255, "A-"),
    ("AWS::ECS::Cluster", "ClusterName", 255, "A-"),
    ("AWS::ECS::Service", "ServiceName", 255, "A-"),
    ("AWS::EKS::FargateProfile", "FargateProfileName", 63, "A-"),
    ("AWS::EKS::Nodegroup", "NodegroupName", 63, "A-"),
    ("AWS::ElastiCache::CacheCluster", "ClusterName", 50, "a-"),
    ("AWS::ElastiCache::ReplicationGroup", "ReplicationGroupId", 40, "a-"),
    ("AWS::ElastiCache::SubnetGroup", "CacheSubnetGroupName", 255, "a-"),
    ("AWS::ElasticLoadBalancing::LoadBalancer", "LoadBalancerName", 32, "A-"),
    ("AWS::ElasticLoadBalancingV2::LoadBalancer", "Name", 32, "A-"),
    ("AWS::ElasticLoadBalancingV2::TargetGroup", "Name", 32, "A-"),
    ("AWS::Elasticsearch::Domain", "DomainName", 28, "a-"),
    ("AWS::Glue::Crawler", "Name", 255, "A-"),
    ("AWS::Glue::Job", "Name", 255, "A-"),
    ("AWS::Glue::Trigger", "Name", 255, "A-"),
    ("AWS::Glue::Workflow", "Name", 255, "A-"),
    ("AWS::IAM::Group", "GroupName", 128, "A-"),
    ("AWS::IAM::InstanceProfile", "InstanceProfileName", 128, "A-"),
    ("AWS::IAM::ManagedPolicy", "ManagedPolicyName", 128, "A-"),
    ("AWS::IAM::Role", "RoleName", 64, "A-"),
    ("AWS::IAM::User", "UserName", 64, "A-"),
    ("AWS::Lambda::Function", "FunctionName", 64, "A-"),
    ("AWS::Logs::LogGroup", "LogGroupName", 512, "A-"),
    ("AWS::Logs::LogStream", "LogStreamName", 512, "A-"),
    ("AWS::Logs::MetricFilter", "FilterName", 512, "A-"),
    ("AWS::Logs::SubscriptionFilter", "FilterName", 512, "A-"),
    ("AWS::Neptune::DBCluster", "DBClusterIdentifier", 63, "a-"),
    ("AWS::Neptune::DBClusterParameterGroup", "Name", 255, "a-"),
    ("AWS::Neptune::DBInstance", "DBInstanceIdentifier", 63, "a-"),
    ("AWS::Neptune::DBParameterGroup", "Name", 255, "a-"),
    ("AWS::Neptune::DBSubnetGroup", "DBSubnetGroupName", 255, "a-"),
    ("AWS::OpenSearchService::Domain", "DomainName", 28, "a-"),
    ("AWS::RDS::DBCluster", "DBClusterIdentifier", 63, "a-"),
    ("AWS::RDS::DBClusterParameterGroup", "DBClusterParameterGroupName", 255, "a-"),
    ("AWS::RDS::DBInstance", "DBInstanceIdentifier", 63, "a-"),
    ("AWS::RDS::DBParameterGroup", "DBParameterGroupName", 255, "a-"),
    ("AWS::RDS::DBSubnetGroup", "DBSubnetGroupName", 255, "a-"),
    ("AWS::RDS::EventSubscription", "SubscriptionName", 255, "a-"),
    ("AWS::RDS::GlobalCluster", "GlobalClusterIdentifier", 63, "a-"),
    ("AWS::RDS::OptionGroup", "OptionGroupName", 255, "a-"),
    ("AWS::Redshift::Cluster", "ClusterIdentifier", 63, "a-"),
    ("AWS::Redshift::ClusterParameterGroup", "ParameterGroupName", 255, "a-"),
    ("AWS::S3::AccessPoint", "Name", 50, "a-"),
    ("AWS::S3::Bucket", "BucketName", 63, "a-"),
    ("AWS::SES::ConfigurationSet", "Name", 64, "A-"),
    ("AWS::SNS::Topic", "TopicName", 256, "A-"),
    ("AWS::SQS::Queue", "QueueName", 80, "A-"),
    ("AWS::SSM::Parameter", "Name", 1011, "A-"),
    ("AWS::SageMaker::Endpoint", "EndpointName", 63, "A-"),
    ("AWS::SageMaker::EndpointConfig", "EndpointConfigName", 63, "A-"),
    ("AWS::SageMaker::Model", "ModelName", 63, "A-"),
    // 512, but an ending of `-` and six characters would be taken for the random part of the ARN; ours has ten.
    ("AWS::SecretsManager::Secret", "Name", 512, "A-"),
    ("AWS::StepFunctions::StateMachine", "StateMachineName", 80, "A-"),
    ("AWS::VpcLattice::Service", "Name", 40, "a-"),
    ("AWS::VpcLattice::ServiceNetwork", "Name", 63, "a-"),
    ("AWS::VpcLattice::TargetGroup", "Name", 128, "a-"),
];

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::super::lookup;
    use super::*;

    fn with_seed<T>(
        stack: &str,
        logical_id: &str,
        generation: u64,
        act: impl FnOnce(&NameSeed<'_>) -> T,
    ) -> Option<T> {
        let account: Account = "123456789012".parse().ok()?;
        let region: Region = "eu-west-1".parse().ok()?;
        let (stack, logical_id) = (stack.parse().ok()?, logical_id.parse().ok()?);
        let seed = NameSeed {
            account: &account,
            region: &region,
            stack_id: "arn:stack/0",
            stack: &stack,
            logical_id: &logical_id,
            generation,
        };
        Some(act(&seed))
    }

    /// A seed for the tests of this room: stack `App`, logical id `Queue1`.
    pub(in super::super) fn seed<T>(act: impl FnOnce(&NameSeed<'_>) -> T) {
        assert!(with_seed("App", "Queue1", 0, act).is_some());
    }

    fn name(type_name: &str, stack: &str, logical_id: &str, properties: &Value) -> Option<String> {
        let schema = lookup(type_name)?;
        let name = with_seed(stack, logical_id, 0, |seed| physical_name(&schema, seed, properties))?;
        name.map(|(_, name)| name)
    }

    /// The name without its hash.
    fn stem(name: &str) -> String {
        let hash = name.rsplit('-').next().unwrap_or_default();
        let hash = hash.split('.').next().unwrap_or_default();
        assert_eq!(hash.len(), HASH_LENGTH, "{name}");
        name.replace(hash, "#")
    }

    #[test]
    fn names() {
        let long = "L".repeat(80);
        for (type_name, stack, logical_id, properties, want) in [
            ("AWS::SQS::Queue", "App", "Jobs", json!({}), "App-Jobs-#"),
            ("AWS::SQS::Queue", "App", "Jobs", json!({"QueueName": null}), "App-Jobs-#"),
            ("AWS::SQS::Queue", "App", "Jobs", json!({"FifoQueue": true}), "App-Jobs-#.fifo"),
            ("AWS::SQS::Queue", "App", "Jobs", json!({"FifoQueue": "true"}), "App-Jobs-#.fifo"),
            ("AWS::SQS::Queue", "App", "Jobs", json!({"FifoQueue": false}), "App-Jobs-#"),
            ("AWS::SNS::Topic", "App", "News", json!({"FifoTopic": true}), "App-News-#.fifo"),
            ("AWS::S3::Bucket", "MyApp", "Uploads", json!({}), "myapp-uploads-#"),
            // Nested stacks, and runs of separators.
            ("AWS::SQS::Queue", "App~Child", "Jobs", json!({}), "App-Child-Jobs-#"),
            ("AWS::RDS::DBCluster", "a--b-", "Db", json!({}), "a-b-db-#"),
            // Beginnings that the service keeps for itself.
            ("AWS::SSM::Parameter", "AwsThing", "P", json!({}), "cdkd-AwsThing-P-#"),
            ("AWS::SSM::Parameter", "Thing", "P", json!({}), "Thing-P-#"),
            // Cut: the stack's name first, down to half of the room.
            ("AWS::OpenSearchService::Domain", "Production", "Search", json!({}), "production-search-#"),
            ("AWS::OpenSearchService::Domain", "ProductionStack", "Search", json!({}), "production-search-#"),
            (
                "AWS::OpenSearchService::Domain",
                "ProductionStack",
                "SearchDomain",
                json!({}),
                "producti-searchdo-#",
            ),
            (
                "AWS::OpenSearchService::Domain",
                "Pro-ductionStack",
                "SearchDomain",
                json!({}),
                "pro-duct-searchdo-#",
            ),
            (
                "AWS::OpenSearchService::Domain",
                "Product-ionStack",
                "SearchDomain",
                json!({}),
                "product-searchdom-#",
            ),
        ] {
            let name = name(type_name, stack, logical_id, &properties).unwrap_or_default();
            assert_eq!(stem(&name), want, "{type_name} {stack} {logical_id} {properties}");
        }
        for (type_name, longest) in [
            ("AWS::SQS::Queue", 80),
            ("AWS::IAM::Role", 64),
            ("AWS::Lambda::Function", 64),
            ("AWS::ElasticLoadBalancingV2::LoadBalancer", 32),
            ("AWS::S3::Bucket", 63),
            ("AWS::IAM::ManagedPolicy", 128),
        ] {
            let name = name(type_name, &long, &long, &json!({"FifoQueue": true})).unwrap_or_default();
            assert_eq!(name.len(), longest, "{type_name}: {name}");
        }
    }

    #[test]
    fn no_name() {
        for (type_name, properties) in [
            ("AWS::SQS::Queue", json!({"QueueName": "mine"})),
            ("AWS::S3::Bucket", json!({"BucketNamePrefix": "mine"})),
            ("AWS::Route53::HostedZone", json!({})),
            ("AWS::ApiGateway::Stage", json!({})),
            ("AWS::Cognito::UserPool", json!({})),
            ("AWS::SNS::Subscription", json!({})),
            ("AWS::EC2::VPC", json!({})),
            ("AWS::S3Express::DirectoryBucket", json!({})),
        ] {
            assert_eq!(name(type_name, "App", "Thing", &properties), None, "{type_name}");
        }
    }

    #[test]
    fn a_name_stays_until_the_next_replacement() {
        let hash_of = |stack: &str, id: &str, generation| with_seed(stack, id, generation, hash);
        let first = hash_of("App", "Jobs", 0);
        // Pinned: another value would leave resources that lost runs made unfound.
        assert_eq!(first.as_deref(), Some("weel66e4ab"));
        assert_eq!(hash_of("App", "Jobs", 0), first);
        for other in [hash_of("App", "Jobs", 1), hash_of("App2", "Jobs", 0), hash_of("App", "Jobs2", 0)] {
            assert_ne!(other, first);
        }
    }

    #[test]
    fn patterns() {
        for (pattern, want) in [
            ("^[a-zA-Z0-9_-]{1,64}$", Some((Some(64), false, Some('-')))),
            ("[\\.\\-_A-Za-z0-9]+", Some((None, false, Some('-')))),
            ("^[\\w+=,.@-]+$", Some((None, false, Some('-')))),
            ("^[a-z][a-z0-9-]{2,31}$", Some((Some(32), true, Some('-')))),
            ("^[a-zA-Z][a-zA-Z0-9_]*$", Some((None, false, Some('_')))),
            ("^[a-zA-Z0-9]+$", Some((None, false, None))),
            ("^[-_A-Za-z-0-9][-_A-Za-z0-9 ]{1,126}[-_A-Za-z-0-9]$", Some((Some(128), false, Some('-')))),
            ("^[0-9A-Z]+$", None),
            ("^[a-zA-Z]+$", None),
            ("^[^:*]*$", None),
            ("^(a|b)$", None),
            ("^(?=.{2,256}$)[a-z0-9]+$", None),
            ("^[\\p{L}]+$", None),
            ("[a-z", None),
            ("", None),
        ] {
            let got = Pattern::parse(pattern).map(|p| (p.max_length, p.lower_case, p.separator));
            assert_eq!(got, want, "{pattern}");
        }
    }

    #[test]
    fn reviewed_names_exist() {
        for (type_name, property, max_length, _) in REVIEWED {
            let schema = lookup(type_name).unwrap_or_default();
            assert!(!schema.required.iter().any(|required| required == property), "{type_name} {property}");
            let fixed = schema.create_only.iter().chain(&schema.primary_identifier);
            assert!(fixed.into_iter().any(|path| path.to_string() == *property), "{type_name} {property}");
            assert!(
                !schema.read_only.iter().any(|path| path.to_string() == *property),
                "{type_name} {property}"
            );
            assert!(*max_length >= SHORTEST, "{type_name}");
        }
        for (type_name, _) in RESERVED {
            assert!(lookup(type_name).is_some_and(|schema| schema.name.is_some()), "{type_name}");
        }
        for type_name in NEVER.iter().chain(SUFFIXES.iter().map(|(name, _)| name)) {
            assert!(lookup(type_name).is_some(), "{type_name}");
        }
        assert!(REVIEWED.is_sorted());
    }
}
