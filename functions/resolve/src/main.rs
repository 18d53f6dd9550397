fn main() -> Result<(), cdkd_aws::edge::Fatal> {
    cdkd_aws::edge::run(resolve::handle)
}
