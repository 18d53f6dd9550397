//! Which objects are there already.
//!
//! Of many in one bucket, a page of its listing tells of a thousand at once which are missing: those need no look of
//! their own. What is there is looked at unless its size says all.

use std::collections::BTreeMap;

use cdkd_core::assets::skip::{Decision, by_listing, is_published};
use cdkd_core::{Error, Result};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::Publishing;
use crate::plan::Job;

/// How many looks are under way at once.
const LOOKS: usize = 32;
/// From how many objects of a bucket on a listing is cheaper than looks.
const WORTH_A_LISTING: usize = 8;
/// One more page is read for each so many objects.
const FOR_A_PAGE: usize = 100;

impl<'a> Publishing<'a> {
    /// Those that have to be written, in the order of the list.
    pub(crate) async fn missing(&self, jobs: Vec<Job<'a>>) -> Result<Vec<Job<'a>>> {
        let mut buckets: BTreeMap<&str, Vec<&Job<'a>>> = BTreeMap::new();
        for job in &jobs {
            buckets.entry(&job.file.bucket).or_default().push(job);
        }
        let mut listings = BTreeMap::new();
        for (bucket, jobs) in buckets {
            if jobs.len() >= WORTH_A_LISTING {
                listings.insert(bucket.to_owned(), self.listing(bucket, &jobs).await?);
            }
        }
        let decide = |job: Job<'a>| {
            let listing = listings.get(&job.file.bucket);
            async move {
                let (file, wanted) = (job.file, &job.wanted);
                let decision = match listing.filter(|listing| listing.covers(&file.key)) {
                    Some(listing) => by_listing(&file.key, wanted, listing.sizes.get(&file.key).copied()),
                    None => Decision::Look,
                };
                let is_there = match decision {
                    Decision::Skip => true,
                    Decision::Publish => false,
                    Decision::Look => {
                        let found = self.invocation.aws.store.look(&file.bucket, &file.key).await;
                        let found = found.map_err(|refusal| self.explain(file, refusal))?;
                        found.is_some_and(|found| is_published(&file.key, wanted, &found))
                    }
                };
                Ok::<_, Error>((!is_there).then_some(job))
            }
        };
        let missing: Vec<Option<Job<'a>>> =
            stream::iter(jobs.into_iter().map(decide)).buffered(LOOKS).try_collect().await?;
        Ok(missing.into_iter().flatten().collect())
    }

    async fn listing(&self, bucket: &str, jobs: &[&Job<'a>]) -> Result<Listing> {
        let mut keys: Vec<&str> = jobs.iter().map(|job| job.file.key.as_str()).collect();
        keys.sort_unstable();
        let mut listing = Listing { from: before(keys.first().copied()), ..Listing::default() };
        let mut after = listing.from.clone();
        for _ in 0..=jobs.len() / FOR_A_PAGE {
            let page = self.invocation.aws.store.page(bucket, &after).await;
            // All of them fail alike: the first stands for all.
            let (page, more) = page.map_err(|refusal| self.explain_first(jobs, refusal))?;
            let last = page.last().map(|object| object.key.clone());
            listing.sizes.extend(page.into_iter().map(|object| (object.key, object.size)));
            let Some(last) = last.filter(|_| more) else {
                listing.ended = true;
                break;
            };
            listing.to.clone_from(&last);
            // Nothing between here and the next one of ours is of interest.
            let next = keys.iter().copied().find(|key| *key > last.as_str());
            if next.is_none() {
                break;
            }
            after = last.max(before(next));
        }
        Ok(listing)
    }

    fn explain_first(&self, jobs: &[&Job<'a>], refusal: cdkd_aws::store::objects::Refusal) -> Error {
        match jobs.first() {
            Some(job) => self.explain(job.file, refusal),
            None => Error::new(cdkd_core::Code::InternalError, "a listing for nothing"),
        }
    }
}

/// Objects of a bucket with their sizes, as far as wanted keys lie in what was listed.
#[derive(Default)]
struct Listing {
    /// Behind this key.
    from: String,
    /// Up to this key, or
    to: String,
    /// to the end.
    ended: bool,
    sizes: BTreeMap<String, u64>,
}

impl Listing {
    fn covers(&self, key: &str) -> bool {
        self.from.as_str() < key && (self.ended || key <= self.to.as_str())
    }
}

/// A key that sorts before this one, and after none of ours that does.
fn before(key: Option<&str>) -> String {
    let mut before = key.unwrap_or_default().to_owned();
    before.pop();
    before
}
