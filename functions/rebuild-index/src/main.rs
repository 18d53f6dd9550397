fn main() -> Result<(), cdkd_aws::edge::Fatal> {
    cdkd_aws::edge::run(rebuild_index::handle)
}
