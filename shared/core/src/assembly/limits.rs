//! What an assembly may measure. Beyond these: `AssemblyTooLarge`.

/// Files in the assembly, directories not counted. A bundled `node_modules` has some ten thousand.
pub const MAX_ENTRIES: u64 = 100_000;

/// Bytes of a zip's central directory: [`MAX_ENTRIES`] of some 300 bytes each.
pub const MAX_DIRECTORY: u64 = 32 << 20;

/// Bytes of one document: a manifest, an asset manifest, a metadata file, a template. AWS takes
/// templates of up to 1 MB; a manifest of a thousand stacks stays below this too.
pub const MAX_DOCUMENT: u64 = 10 << 20;

/// Bytes, inflated, of all documents that one run reads. They are in memory at once.
pub const MAX_DOCUMENTS: u64 = 200 << 20;

/// How many times its compressed size a document may have. JSON reaches some 30; DEFLATE could reach 1,032.
pub const MAX_RATIO: u64 = 200;

/// Documents up to this many bytes are exempt from [`MAX_RATIO`]: they harm nobody.
pub const RATIO_EXEMPT: u64 = 1 << 20;

/// Nested stacks of one stack, at any depth. A template that nests itself would have no end.
pub const MAX_NESTED: usize = 500;

/// Manifests of nested assemblies (CDK stages), the outermost one included.
pub const MAX_MANIFESTS: usize = 1_000;
