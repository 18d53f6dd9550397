//! Errors: what happened, to whom, and how to fix it.
//!
//! Four owners, four fields: the [`Code`] is stable (Step Functions matches on it, `docs/errors/<Code>.md`
//! explains it), its [`Kind`] says what the caller does, the message says what happened, the hint how to fix it.

use std::fmt;

use serde_json::{Map, Value, json};

/// What the caller does with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The input is wrong; the same call fails again. Nothing was touched.
    Input,
    /// The estate forbids it now (a lock, a consumer, a protection); it may pass once that is resolved.
    Refused,
    /// Another writer was there first; the run stops before its next call.
    Conflict,
    /// AWS refused or failed an operation.
    Service,
    /// May pass if tried again; the state machines do so.
    Retryable,
    /// A defect of cdkd.
    Internal,
}

macro_rules! codes {
    ($( $(#[$doc:meta])* $name:ident: $kind:ident, )*) => {
        /// Stable names of errors: the `Error` of a failed execution. Each has a page `docs/errors/<name>.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $( $(#[$doc])* $name, )* }

        impl Code {
            /// All codes, in order of declaration.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The name as `ErrorEquals` sees it.
            pub const fn name(self) -> &'static str {
                match self { $(Code::$name => stringify!($name),)* }
            }

            /// What the caller does with it.
            pub const fn kind(self) -> Kind {
                match self { $(Code::$name => Kind::$kind,)* }
            }
        }
    };
}

codes! {
    /// The execution's input or a function's payload does not have the documented form.
    InvalidInput: Input,
    /// No object at the assembly's address, or no right to read it.
    AssemblyNotFound: Input,
    /// The upload is no cloud assembly: no manifest, not JSON, a missing file.
    InvalidAssembly: Input,
    /// The manifest was written by a CDK that is newer than this cdkd understands.
    UnsupportedAssemblyVersion: Input,
    /// A path in the assembly leaves it (`../`, absolute, a link).
    UnsafeAssemblyPath: Input,
    /// The assembly is larger than the limits, or inflates to more than it says.
    AssemblyTooLarge: Input,
    /// No stack of that name in the assembly or on record.
    StackNotFound: Input,
    /// The name fits several stacks.
    AmbiguousStack: Input,
    /// The stack belongs to another account than the one cdkd is installed in.
    WrongAccount: Input,
    /// The assembly was synthesized with context values missing.
    MissingContext: Input,
    /// Constructs of the app reported errors during synthesis.
    AssemblyHasErrors: Input,
    /// The stack needs an asset of a form that this release does not publish.
    UnsupportedAsset: Input,
    /// A value still names the storage that the stack's assets were redirected from.
    UnrewrittenAssetReference: Input,
    /// An asset is larger than what one invocation publishes.
    AssetTooLarge: Input,
    /// The template is not JSON, or not of the form of a template.
    InvalidTemplate: Input,
    /// The template uses a function, macro or dynamic reference that this release does not evaluate.
    UnsupportedIntrinsic: Input,
    /// An intrinsic function has arguments it cannot have.
    InvalidIntrinsic: Input,
    /// A `Ref`, `Fn::GetAtt`, `Fn::Sub`, `DependsOn` or `Condition` names something the template does not have.
    UnresolvedReference: Input,
    /// Resources, conditions or stacks depend on each other in a circle.
    CircularDependency: Input,
    /// A parameter's value breaks its declaration.
    InvalidParameter: Input,
    /// A parameter has no value, no recorded one and no default.
    MissingParameter: Input,
    /// The run supplies a parameter that the template does not declare.
    UnknownParameter: Input,
    /// A secret was given in plain text; it is refused before it can rest anywhere.
    PlaintextSecretError: Input,
    /// A resource type that this release cannot provision.
    UnsupportedResourceType: Input,
    /// A change needs a replacement, but the resource's fixed name does not change.
    CustomNamedResourceReplacement: Input,
    /// `state.json` was written by a newer tool.
    UnsupportedStateVersion: Refused,
    /// `state.json` or a document beside it does not parse.
    InvalidState: Refused,
    /// A region's marker of asset storage cannot be understood.
    InvalidBootstrapMarker: Refused,
    /// The asset storage that a region's marker names is gone.
    AssetStorageMissing: Refused,
    /// Records still refer to the storage that is to be destroyed, or may.
    AssetStorageInUse: Refused,
    /// Another run holds the stack's lock.
    StackLocked: Refused,
    /// The stack's last deploy asked for termination protection.
    TerminationProtected: Refused,
    /// No stack of the region exports that name.
    ExportNotFound: Input,
    /// The stack is on record, but has no output of that name.
    OutputNotFound: Input,
    /// Another stack of the region exports that name or is about to.
    ExportNameTakenError: Refused,
    /// Other stacks import what the run would take away.
    StackHasActiveImportsError: Refused,
    /// An export that this run read is being withdrawn, or has another value by now.
    ProducerBeingDestroyedError: Refused,
    /// Whether another stack imports it cannot be told: a record cannot be read, or another tool is at work.
    StrongReferenceScanIncomplete: Refused,
    /// Which stack exports a name cannot be told: a record cannot be read.
    ExportScanIncomplete: Refused,
    /// The index of exports was written by a newer tool.
    UnsupportedIndexVersion: Refused,
    /// The run no longer holds the lock of its stack.
    LockLostError: Conflict,
    /// A document changed between this run's read and its write.
    StateConflict: Conflict,
    /// The state bucket or the runs bucket is missing, owned by another account, or not readable.
    BucketUnavailable: Service,
    /// AWS denied a call that cdkd needs.
    AccessDenied: Service,
    /// A resource could not be created, updated or deleted.
    ProvisioningFailed: Service,
    /// A call of an earlier run may or may not have happened, and nothing tells which.
    UnknownOutcome: Service,
    /// AWS asks for fewer calls.
    Throttled: Retryable,
    /// AWS did not answer, or answered with an error of its own.
    ServiceUnavailable: Retryable,
    /// An earlier invocation may still be at work; the next try waits for its deadline.
    EarlierInvocationAlive: Retryable,
    /// A defect of cdkd.
    InternalError: Internal,
}

/// Where in the user's documents something is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub stack: Option<String>,
    pub logical_id: Option<String>,
    /// Segments below the stack's template, e.g. `Resources`, `Queue`, `Properties`, `Tags`, `0`.
    pub path: Vec<String>,
}

impl Place {
    /// A place in the template of `stack`.
    pub fn stack(stack: impl Into<String>) -> Self {
        Self { stack: Some(stack.into()), ..Self::default() }
    }

    /// The same place with the logical id it belongs to.
    #[must_use]
    pub fn at(mut self, logical_id: impl Into<String>) -> Self {
        self.logical_id = Some(logical_id.into());
        self
    }

    /// One step further down.
    #[must_use]
    pub fn down(&self, segment: impl Into<String>) -> Self {
        let mut deeper = self.clone();
        deeper.path.push(segment.into());
        deeper
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        if let Some(stack) = &self.stack {
            parts.push(format!("stack `{stack}`"));
        }
        if let Some(logical_id) = &self.logical_id {
            parts.push(format!("resource `{logical_id}`"));
        }
        if !self.path.is_empty() {
            parts.push(format!("at `{}`", self.path.join(".")));
        }
        f.write_str(&parts.join(", "))
    }
}

/// An error as every layer passes it on; boxed, because most calls succeed.
#[derive(Clone, Debug, PartialEq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq)]
struct Inner {
    code: Code,
    message: String,
    hint: Option<String>,
    details: Map<String, Value>,
    place: Option<Place>,
}

/// The result of everything in cdkd that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// `message`: what happened and to whom; no trailing period unless it has several sentences.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { code, message: message.into(), hint: None, details: Map::new(), place: None }))
    }

    /// How to fix it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// A machine-readable fact about it. Never a property value: causes end up in execution histories.
    #[must_use]
    pub fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.details.insert(key.to_owned(), value.into());
        self
    }

    /// Where it is in the user's documents; an inner place that is already known is kept.
    #[must_use]
    pub fn place(mut self, place: &Place) -> Self {
        match &mut self.0.place {
            None => self.0.place = Some(place.clone()),
            Some(inner) => {
                if inner.stack.is_none() {
                    inner.stack.clone_from(&place.stack);
                }
                if inner.logical_id.is_none() {
                    inner.logical_id.clone_from(&place.logical_id);
                }
            }
        }
        self
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    pub fn kind(&self) -> Kind {
        self.0.code.kind()
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn hint_text(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    pub fn details(&self) -> &Map<String, Value> {
        &self.0.details
    }

    pub fn where_(&self) -> Option<&Place> {
        self.0.place.as_ref()
    }

    /// The cause as it crosses the edge: `{code, message, hint, details}`.
    pub fn cause(&self) -> Value {
        let mut details = self.0.details.clone();
        if let Some(place) = &self.0.place {
            if let Some(stack) = &place.stack {
                details.entry("stack").or_insert_with(|| json!(stack));
            }
            if let Some(logical_id) = &place.logical_id {
                details.entry("logicalId").or_insert_with(|| json!(logical_id));
            }
            if !place.path.is_empty() {
                details.entry("path").or_insert_with(|| json!(place.path.join(".")));
            }
        }
        json!({
            "code": self.0.code.name(),
            "message": self.text(),
            "hint": self.0.hint,
            "details": details,
        })
    }

    /// Reads a cause back; anything else becomes an [`Code::InternalError`] that carries it.
    pub fn from_cause(cause: &Value) -> Self {
        let code = cause["code"].as_str().and_then(|name| Code::ALL.iter().find(|c| c.name() == name));
        match (code, cause["message"].as_str()) {
            (Some(code), Some(message)) => {
                let mut error = Self::new(*code, message);
                error.0.hint = cause["hint"].as_str().map(str::to_owned);
                if let Some(details) = cause["details"].as_object() {
                    error.0.details.clone_from(details);
                }
                error
            }
            _ => Self::new(Code::InternalError, "a failure without a documented cause")
                .detail("cause", cause.clone()),
        }
    }

    /// Folds all errors of one document into one: the first leads, all are listed in `details.errors`.
    ///
    /// Returns `Ok(())` when there are none.
    pub fn all(errors: Vec<Error>) -> Result<()> {
        let causes: Vec<Value> = errors.iter().map(Error::cause).collect();
        let count = errors.len();
        match errors.into_iter().next() {
            None => Ok(()),
            Some(first) if count == 1 => Err(first),
            Some(first) => {
                let message = format!("{} (and {} more)", first.text(), count - 1);
                let mut error = Error::new(first.code(), message).detail("errors", causes);
                error.0.hint = first.0.hint;
                error.0.place = first.0.place.map(|place| Place { path: Vec::new(), ..place });
                Err(error)
            }
        }
    }

    fn text(&self) -> String {
        match &self.0.place {
            Some(place) if place != &Place::default() => format!("{} ({place})", self.0.message),
            _ => self.0.message.clone(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code.name(), self.text())?;
        if let Some(hint) = &self.0.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// The candidate nearest to `wanted`, for "did you mean".
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&wanted.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(score, _)| *score >= 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_says_what_happened_to_whom_and_how_to_fix_it() {
        let place = Place::stack("Web").at("Queue").down("Resources").down("Queue");
        let error = Error::new(Code::UnresolvedReference, "`Ref` names `Topicc`, which the template lacks")
            .hint("did you mean `Topic`?")
            .place(&place);
        let cause = error.cause();
        assert_eq!(
            cause,
            json!({
                "code": "UnresolvedReference",
                "message": "`Ref` names `Topicc`, which the template lacks (stack `Web`, resource `Queue`, at `Resources.Queue`)",
                "hint": "did you mean `Topic`?",
                "details": {"stack": "Web", "logicalId": "Queue", "path": "Resources.Queue"},
            })
        );
        assert_eq!(Error::from_cause(&cause).cause(), cause);
    }

    #[test]
    fn all_errors_of_a_document_are_told_at_once() {
        assert!(Error::all(vec![]).is_ok());
        let one = Error::new(Code::InvalidTemplate, "a");
        assert_eq!(Error::all(vec![one.clone()]), Err(one.clone()));
        let both = Error::all(vec![one, Error::new(Code::InvalidIntrinsic, "b")]).unwrap_err();
        assert_eq!(both.code(), Code::InvalidTemplate);
        assert_eq!(both.message(), "a (and 1 more)");
        assert_eq!(both.details()["errors"][1]["code"], "InvalidIntrinsic");
    }

    #[test]
    fn the_nearest_name_is_near() {
        assert_eq!(nearest("Topicc", ["Queue", "Topic"]), Some("Topic"));
        assert_eq!(nearest("Bucket", ["Queue", "Topic"]), None);
    }
}
