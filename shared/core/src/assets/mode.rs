//! Whether a run leaves assets in the storage of `cdk bootstrap`, though its region has storage of cdkd's own.
//!
//! Source: `seeds/asset-storage.txt`, section 4.2, per-app opt-out.

use serde_json::Value;

use crate::error::{Code, Error, Result};
use crate::name::Region;

/// The file at the root of the upload that may say it.
pub const CDK_JSON: &str = "cdk.json";

/// Whether the app stays with the storage of `cdk bootstrap`: the run's option, else `context.cdkd.useCdkBootstrapAssets`
/// of `cdk.json`, else not.
///
/// `cdk_json`: the file as it lies at the root of the upload, if it is there.
///
/// `InvalidAssembly`: the file is not JSON, or the value no boolean.
pub fn opted_out(option: Option<bool>, cdk_json: Option<&[u8]>) -> Result<bool> {
    if let Some(said) = option {
        return Ok(said);
    }
    let Some(bytes) = cdk_json else { return Ok(false) };
    let wrong = |what: &str| {
        Error::new(Code::InvalidAssembly, format!("`{CDK_JSON}` at the root of the upload {what}"))
            .hint("give `true` or `false` as `context.cdkd.useCdkBootstrapAssets`, or leave the file out")
    };
    let file: Value = serde_json::from_slice(bytes).map_err(|_| wrong("is not JSON"))?;
    match &file["context"]["cdkd"]["useCdkBootstrapAssets"] {
        Value::Null => Ok(false),
        Value::Bool(said) => Ok(*said),
        // `cdk synth -c` and hand-written files have it as text.
        Value::String(said) if said == "true" => Ok(true),
        Value::String(said) if said == "false" => Ok(false),
        _ => Err(wrong("has a value for `context.cdkd.useCdkBootstrapAssets` that is no boolean")),
    }
}

/// What a run says of a region whose assets it leaves where `cdk gc` finds them (rule A22).
pub fn exposed(region: &Region) -> String {
    format!(
        "assets of {region} are in the storage of `cdk bootstrap`, where `cdk gc` deletes what no CloudFormation stack \
         uses: start `cdkd-bootstrap` with {{\"region\": \"{region}\"}} to have cdkd's own, or set \
         `useCdkBootstrapAssets` to stay"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a22_the_option_wins_over_the_file() {
        let file =
            |value: &str| format!(r#"{{"context": {{"cdkd": {{"useCdkBootstrapAssets": {value}}}}}}}"#);
        let table = [
            (None, None, Ok(false)),
            (Some(true), None, Ok(true)),
            (None, Some(file("true")), Ok(true)),
            (None, Some(file("\"true\"")), Ok(true)),
            (None, Some(file("false")), Ok(false)),
            (Some(false), Some(file("true")), Ok(false)),
            (Some(true), Some(file("false")), Ok(true)),
            (None, Some("{}".to_owned()), Ok(false)),
            (None, Some(r#"{"context": {"cdkd": null}}"#.to_owned()), Ok(false)),
            (None, Some(file("3")), Err(Code::InvalidAssembly)),
            (None, Some("app".to_owned()), Err(Code::InvalidAssembly)),
            // What decides is not looked at further.
            (Some(true), Some("app".to_owned()), Ok(true)),
        ];
        for (option, file, expected) in table {
            let found = opted_out(option, file.as_deref().map(str::as_bytes)).map_err(|error| error.code());
            assert_eq!(found, expected, "{option:?} {file:?}");
        }
    }
}
