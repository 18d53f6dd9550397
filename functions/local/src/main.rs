//! All functions in one binary: `_HANDLER` says which one this process is.

use cdkd_aws::edge::{Fatal, run};

fn main() -> Result<(), Fatal> {
    let name = cdkd_aws::settings::variable("_HANDLER").unwrap_or_default();
    match name.as_str() {
        "bootstrap" => run(bootstrap::handle),
        "provision" => run(provision::handle),
        "publish-assets" => run(publish_assets::handle),
        "read-assembly" => run(read_assembly::handle),
        "rebuild-index" => run(rebuild_index::handle),
        "resolve" => run(resolve::handle),
        "save-state" => run(save_state::handle),
        "strong-ref-scan" => run(strong_ref_scan::handle),
        other => Err(format!("no function is called `{other}`").into()),
    }
}
