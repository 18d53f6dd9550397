//! `publish-assets` outside of Lambda, beside bare calls of the client that it uses.
//!
//! The only argument is a document `{payload, bare?: {bucket, count, size}}`. With `bare` it writes and looks at so many
//! objects in that bucket, and publishes twice, in turn: `{puts, none, heads, all}`, seconds. Without, it publishes:
//! `{resident}`, the most bytes that this process ever had in memory.

#![allow(clippy::print_stdout, reason = "it is what it is for")]

use std::time::{Duration, Instant};

use cdkd_aws::edge::{self, Fatal, Invocation};
use cdkd_aws::settings;
use cdkd_aws::store::objects::Kind;
use futures::stream::{self, StreamExt as _};
use serde_json::{Value, json};

/// As many as the function has under way.
const AT_ONCE: usize = 32;
/// As long as Lambda lets a function work.
const LIMIT: Duration = Duration::from_mins(15);

fn main() -> Result<(), Fatal> {
    let argument = std::env::args().nth(1).ok_or("what to do?")?;
    let task: Value = serde_json::from_str(&argument)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("{}", runtime.block_on(work(&task))?);
    Ok(())
}

async fn work(task: &Value) -> Result<Value, Fatal> {
    let told = |error: cdkd_core::Error| Fatal::from(error.cause().to_string());
    let (aws, settings) = edge::connect().await.map_err(told)?;
    let deadline = settings::now() + i64::try_from(LIMIT.as_millis())?;
    let invocation = Invocation { aws, settings, deadline, request_id: "bench".to_owned() };
    let publish = async || {
        let answer =
            publish_assets::handle(task["payload"].clone(), invocation.clone()).await.map_err(told)?;
        if answer["done"] == true { Ok::<_, Fatal>(answer) } else { Err(answer.to_string().into()) }
    };
    let Some(bare) = task.get("bare") else {
        publish().await?;
        return Ok(json!({ "resident": resident()? }));
    };
    let (store, bucket) = (&invocation.aws.store, bare["bucket"].as_str().unwrap_or_default());
    let size = usize::try_from(bare["size"].as_u64().unwrap_or_default())?;
    let keys: Vec<String> =
        (0..bare["count"].as_u64().unwrap_or_default()).map(|n| format!("{n:064x}")).collect();
    // Connections are made before anything is measured.
    let _ = stream::iter(&keys).map(|key| store.look(bucket, key)).buffer_unordered(AT_ONCE).count().await;
    let kind = Kind { content_type: "application/octet-stream".to_owned(), source: None };

    let began = Instant::now();
    let puts = keys.iter().map(|key| store.write(bucket, key, &kind, vec![7; size]));
    let done =
        stream::iter(puts).buffer_unordered(AT_ONCE).filter(|put| std::future::ready(put.is_ok())).count();
    let done = done.await;
    let puts = began.elapsed();

    let began = Instant::now();
    let none_there = publish().await?;
    let none = began.elapsed();

    let began = Instant::now();
    let heads = keys.iter().map(|key| store.look(bucket, key));
    let seen = stream::iter(heads)
        .buffer_unordered(AT_ONCE)
        .filter(|head| std::future::ready(matches!(head, Ok(Some(_)))))
        .count();
    let seen = seen.await;
    let heads = began.elapsed();

    let began = Instant::now();
    let all_there = publish().await?;
    let all = began.elapsed();
    if (done, seen) != (keys.len(), keys.len())
        || none_there["published"] != keys.len()
        || all_there["skipped"] != keys.len()
    {
        return Err(format!("{done} written, {seen} seen, {none_there}, {all_there}").into());
    }
    let [puts, none, heads, all] = [puts, none, heads, all].map(|time| time.as_secs_f64());
    Ok(json!({ "puts": puts, "none": none, "heads": heads, "all": all }))
}

/// The most bytes that were ever resident.
fn resident() -> Result<u64, Fatal> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}
