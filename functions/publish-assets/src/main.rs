fn main() -> Result<(), cdkd_aws::edge::Fatal> {
    cdkd_aws::edge::run(publish_assets::handle)
}
