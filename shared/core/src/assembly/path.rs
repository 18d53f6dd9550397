//! Paths inside an assembly: relative, `/` between segments, never outside.

use crate::error::{Code, Error, Result};

/// The canonical form of a path that an archive or a listing gives: no `.` or empty segment, no trailing `/`.
///
/// Refuses what could mean a place outside the assembly on any system (`UnsafeAssemblyPath`): `..`, absolute paths,
/// drive letters, backslashes, control characters, text that is not UTF-8, and the empty path.
pub fn canonical(raw: &[u8]) -> Result<String> {
    let text =
        std::str::from_utf8(raw).map_err(|_| unsafe_path(&String::from_utf8_lossy(raw), "is not UTF-8"))?;
    let path = resolve("", text)?;
    if text.split('/').any(|segment| segment == "..") {
        return Err(unsafe_path(text, "has a segment `..`"));
    }
    if path.is_empty() {
        return Err(unsafe_path(text, "names no file"));
    }
    Ok(path)
}

/// The path that `relative` names when it is written in a document of the folder `folder` (canonical; empty for the
/// root). Segments `..` are followed, as nested assemblies use them, but not out of the assembly.
///
/// An empty result is the root itself.
pub fn resolve(folder: &str, relative: &str) -> Result<String> {
    if let Some(why) = objection(relative) {
        return Err(unsafe_path(relative, why));
    }
    let mut segments: Vec<&str> = folder.split('/').filter(|segment| !segment.is_empty()).collect();
    for segment in relative.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop().ok_or_else(|| unsafe_path(relative, "leaves the assembly"))?;
            }
            name => segments.push(name),
        }
    }
    Ok(segments.join("/"))
}

/// The path that a symbolic link at `link` (canonical) leads to, given the link's content.
///
/// Refuses a target outside the assembly (`UnsafeAssemblyPath`).
pub fn link_target(link: &str, content: &[u8]) -> Result<String> {
    let target = std::str::from_utf8(content).map_err(|_| unsafe_path(link, "is a link to no UTF-8 path"))?;
    resolve(folder(link), target).map_err(|_| unsafe_path(link, "is a link that leaves the assembly"))
}

/// The folder of a canonical path; empty for the root.
pub fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn objection(text: &str) -> Option<&'static str> {
    let drive = matches!(text.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    if text.starts_with('/') {
        Some("is absolute")
    } else if drive {
        Some("begins with a drive letter")
    } else if text.contains('\\') {
        Some("has a backslash")
    } else if text.chars().any(char::is_control) {
        Some("has a control character")
    } else {
        None
    }
}

pub(super) fn unsafe_path(path: &str, why: &str) -> Error {
    let shown = path.escape_default().to_string();
    Error::new(Code::UnsafeAssemblyPath, format!("path `{shown}` in the assembly {why}"))
        .hint("archive the content of `cdk.out` with relative paths and `/`, for example `cd cdk.out && zip -r ../app.zip .`")
        .detail("path", shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_paths() {
        let table: &[(&str, Option<&str>)] = &[
            ("manifest.json", Some("manifest.json")),
            ("./manifest.json", Some("manifest.json")),
            ("a//b/./c", Some("a/b/c")),
            ("a/", Some("a")),
            ("a..b/..c", Some("a..b/..c")),
            ("asset:1", Some("asset:1")),
            ("../a", None),
            ("a/../b", None),
            ("a/..", None),
            ("/etc/passwd", None),
            ("C:/a", None),
            ("c:", None),
            ("a\\b", None),
            ("\\\\host\\share", None),
            ("a\0b", None),
            ("a\nb", None),
            ("", None),
            ("./", None),
        ];
        for (raw, expected) in table {
            let got = canonical(raw.as_bytes());
            assert_eq!(got.as_deref().ok(), *expected, "{raw:?}");
            if let Err(error) = got {
                assert_eq!(error.code(), Code::UnsafeAssemblyPath, "{raw:?}");
            }
        }
        assert_eq!(canonical(b"\xff").unwrap_err().code(), Code::UnsafeAssemblyPath);
    }

    #[test]
    fn relative_paths_stay_inside() {
        let table: &[(&str, &str, Option<&str>)] = &[
            ("", "a.json", Some("a.json")),
            ("assembly-Stage", "../asset.1", Some("asset.1")),
            ("assembly-Stage", "a/../b", Some("assembly-Stage/b")),
            ("assembly-Stage", ".", Some("assembly-Stage")),
            ("assembly-Stage", "../../asset.1", None),
            ("", "..", None),
            ("", "/a", None),
        ];
        for (folder, relative, expected) in table {
            assert_eq!(resolve(folder, relative).as_deref().ok(), *expected, "{folder} {relative}");
        }
    }

    #[test]
    fn links_stay_inside() {
        assert_eq!(link_target("asset.1/bin/tool", b"../lib/tool.js").unwrap(), "asset.1/lib/tool.js");
        for target in ["../../../etc/passwd", "/etc/passwd"] {
            let error = link_target("asset.1/bin/tool", target.as_bytes()).unwrap_err();
            assert_eq!(error.code(), Code::UnsafeAssemblyPath);
            assert!(error.message().contains("asset.1/bin/tool"), "{error}");
        }
    }
}
