//! The last parts of the demo: code in asset storage of cdkd's own.

use serde_json::{Value, json};

use super::{Demo, Result};

/// `Greeter` has a function, a layer, a file, a state machine and a nested stack, and imports from `Phrases`.
const APP: &str = "tests/apps/assets/cdk.out";
const STACKS: [&str; 2] = ["Phrases", "Greeter"];

impl Demo {
    pub(super) fn play_code(&mut self) -> Result<()> {
        let (api, account, region) = (self.aws.api().clone(), self.aws.account(), self.aws.region());
        let synthesized_for = format!("cdk-hnb659fds-assets-{account}-{region}");

        self.heading("12. Give the region asset storage of its own: invoke `cdkd-bootstrap`");
        let made = api.invoke("cdkd-bootstrap", &json!({}))?;
        self.say(&format!("   {}", made["message"].as_str().unwrap_or_default()));
        let bucket = made["assets"]["assetBucket"].as_str().unwrap_or_default().to_owned();
        self.check("its bucket is there, and that of `cdk bootstrap` is not", {
            api.bucket_exists(&bucket)? && !api.bucket_exists(&synthesized_for)?
        });

        self.heading("13. Deploy an app with code: functions, a layer, a state machine, a nested stack");
        let assembly = self.aws.upload_assembly_zip(APP)?;
        let result = self.execute("deploy code", "cdkd-deploy", &json!({ "assembly": assembly }))?;
        let published = api.list_objects(&bucket, "")?.len();
        self.check(format!("{published} of 5 assets are in {bucket}"), published == 5);
        let greeter = result["stacks"].as_array().into_iter().flatten().find(|row| row["stack"] == STACKS[1]);
        let function = greeter.and_then(|row| row["outputs"]["Function"].as_str()).unwrap_or_default();
        let answer = api.invoke(function, &json!({ "name": "ada" }))?;
        self.say(&format!("   {function} answers {answer}"));
        self.check(
            "it runs, with its layer, and says what the other stack exports",
            answer["says"] == "good morning, Ada" && answer["layer"] == "words 1",
        );
        let data = answer["data"].as_str().unwrap_or_default();
        self.check("it is told of its data in the same bucket", data.starts_with(&format!("s3://{bucket}/")));
        let record: Value = self.aws.record(STACKS[1])?.unwrap_or_default();
        self.check("no resource names the bucket it was synthesized for", {
            !record.to_string().contains(&synthesized_for)
        });
        self.check_at_rest()?;

        self.heading("14. Destroy both");
        self.execute("destroy code", "cdkd-destroy", &json!({ "stacks": STACKS }))?;
        self.check("the function is gone", api.invoke(function, &json!({})).is_err());
        self.check_at_rest()
    }
}
