//! When an object that is there already will do (DESIGN 9, rules A7 and A8).
//!
//! That something is there is not enough: it counts only under a key that is made of its content, and only if it is what
//! would be uploaded, as far as that is known without uploading it.

/// What would be uploaded, as far as it is known beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes. Unknown of an archive that is compressed on the way.
    pub size: Option<u64>,
    /// CRC-32 of the whole object.
    pub crc32: Option<u32>,
    /// What is written into its metadata: what it is made of ([`fingerprint`](super::archive::fingerprint)) where its
    /// size is unknown, the run where its key says nothing, so that a run writes it once, however often it is retried.
    pub source: Option<String>,
}

/// What a look at the object told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Bytes.
    pub size: u64,
    /// CRC-32 of the whole object, if S3 keeps that of it.
    pub crc32: Option<u32>,
    /// What its metadata say of that.
    pub source: Option<String>,
}

/// What to do about an object, given a listing of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Skip,
    /// The listing does not tell enough.
    Look,
    Publish,
}

/// Whether a key is made of the content: the name at its end, up to the first dot, is a SHA-256 as CDK writes it. What is
/// before it (`bucketPrefix`) says nothing, and it need not be the asset's id (rules A9, A10).
pub fn is_content_addressed(key: &str) -> bool {
    let name = key.rsplit('/').next().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    stem.len() == 64 && stem.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// The decision from a listing that reaches over the key. `listed`: bytes of the object, if it is there.
pub fn by_listing(key: &str, wanted: &Wanted, listed: Option<u64>) -> Decision {
    match (listed, wanted.size) {
        (None, _) => Decision::Publish,
        _ if !is_content_addressed(key) => Decision::Look,
        (Some(found), Some(size)) if found != size => Decision::Publish,
        (Some(_), Some(_)) if wanted.crc32.is_none() => Decision::Skip,
        _ => Decision::Look,
    }
}

/// Whether an object that was looked at will do.
pub fn is_published(key: &str, wanted: &Wanted, found: &Found) -> bool {
    let contradicts =
        |wanted: Option<u32>, found: Option<u32>| wanted.zip(found).is_some_and(|(a, b)| a != b);
    let marked = wanted.source.is_some() && wanted.source == found.source;
    if !is_content_addressed(key) {
        return marked;
    }
    !contradicts(wanted.crc32, found.crc32) && wanted.size.map_or(marked, |size| size == found.size)
}

/// Whether parts of an object that was never completed are of a publisher that is dead: no invocation lives for longer
/// than a quarter of an hour, and what another tool uploads by hand is done in a day. Times in milliseconds since 1970.
pub fn are_abandoned(began: i64, now: i64) -> bool {
    const DAY: i64 = 24 * 60 * 60 * 1000;
    now.saturating_sub(began) > DAY
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";

    #[test]
    fn a8_a9_only_a_hash_at_the_end_of_a_key_says_what_is_in_the_object() {
        let table = [
            (HASH.to_owned(), true),
            (format!("{HASH}.zip"), true),
            (format!("{HASH}.nested.template.json"), true),
            (format!("some/prefix/{HASH}.json"), true),
            ("latest/X.template.json".to_owned(), false),
            ("v1.zip".to_owned(), false),
            (format!("{HASH}/latest.zip"), false),
            (format!("x{HASH}.zip"), false),
            (HASH.to_uppercase(), false),
            (HASH[..40].to_owned(), false),
            (String::new(), false),
        ];
        for (key, expected) in table {
            assert_eq!(is_content_addressed(&key), expected, "{key}");
        }
    }

    #[test]
    fn a7_parts_are_abandoned_after_a_day() {
        let now = 1_700_000_000_000;
        let minute = 60_000;
        let table =
            [(0, false), (15 * minute, false), (24 * 60 * minute, false), (24 * 60 * minute + 1, true)];
        for (ago, expected) in table {
            assert_eq!(are_abandoned(now - ago, now), expected, "{ago}");
        }
        assert!(!are_abandoned(now + minute, now), "a clock that is behind");
    }

    #[test]
    fn a7_a8_a_listing_decides_what_it_can() {
        use Decision::{Look, Publish, Skip};
        let key = format!("{HASH}.zip");
        let sized = Wanted { size: Some(10), ..Wanted::default() };
        let checked = Wanted { size: Some(10), crc32: Some(1), ..Wanted::default() };
        let made = Wanted { source: Some("s".into()), ..Wanted::default() };
        let table = [
            (key.as_str(), &sized, None, Publish),
            (&key, &sized, Some(10), Skip),
            (&key, &sized, Some(9), Publish),
            (&key, &checked, Some(10), Look),
            (&key, &checked, Some(9), Publish),
            (&key, &made, Some(9), Look),
            (&key, &made, None, Publish),
            ("latest.zip", &sized, None, Publish),
            ("latest.zip", &sized, Some(10), Look),
        ];
        for (key, wanted, listed, expected) in table {
            assert_eq!(by_listing(key, wanted, listed), expected, "{key} {wanted:?} {listed:?}");
        }
    }

    #[test]
    fn a7_a8_an_object_that_is_there_counts_only_if_it_is_the_same() {
        let key = format!("{HASH}.zip");
        let wanted =
            |size, crc32, source: Option<&str>| Wanted { size, crc32, source: source.map(str::to_owned) };
        let found =
            |size, crc32, source: Option<&str>| Found { size, crc32, source: source.map(str::to_owned) };
        let table = [
            (key.as_str(), wanted(Some(10), None, None), found(10, None, None), true),
            (&key, wanted(Some(10), None, None), found(10, Some(7), Some("t")), true),
            // Cut off, or of another content.
            (&key, wanted(Some(10), None, None), found(9, None, None), false),
            (&key, wanted(Some(10), Some(1), None), found(10, Some(1), None), true),
            (&key, wanted(Some(10), Some(1), None), found(10, Some(2), None), false),
            (&key, wanted(Some(10), Some(1), None), found(10, None, None), true),
            // Compressed on the way: its size tells nothing, what it was made of does.
            (&key, wanted(None, None, Some("s")), found(10, None, Some("s")), true),
            (&key, wanted(None, None, Some("s")), found(10, None, Some("t")), false),
            (&key, wanted(None, None, Some("s")), found(10, None, None), false),
            (&key, wanted(None, None, None), found(10, None, None), false),
            ("latest/X.template.json", wanted(Some(10), None, None), found(10, None, None), false),
            (
                "latest/X.template.json",
                wanted(Some(10), None, Some("run 2")),
                found(10, None, Some("run 1")),
                false,
            ),
            (
                "latest/X.template.json",
                wanted(Some(10), None, Some("run 2")),
                found(10, None, Some("run 2")),
                true,
            ),
        ];
        for (key, wanted, found, expected) in table {
            assert_eq!(is_published(key, &wanted, &found), expected, "{key} {wanted:?} {found:?}");
        }
    }
}
