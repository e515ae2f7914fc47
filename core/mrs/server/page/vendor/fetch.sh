#!/bin/sh
# Fetches the page's libraries from npm, unchanged, and checks them against SHA256SUMS.
# For another version: change it here and in ../libraries.js, run `sh fetch.sh --record`.
set -eu
cd "$(dirname "$0")"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

extract() { # extract FOLDER PACKAGE@VERSION FILE...: FILEs of a package, without their folders
  folder=$1
  archive=$scratch/$(npm pack --silent --pack-destination "$scratch" "$2")
  shift 2
  mkdir -p "$folder"
  for file; do
    tar -xzOf "$archive" "package/$file" > "$folder/${file##*/}"
  done
}

extract markdown-it-15.0.3 markdown-it@15.0.3 dist/browser/markdown-it.esm.min.mjs LICENSE
for package in entities@8.1.0 linkify-it@6.1.0 mdurl@2.1.0 punycode.js@2.3.1 uc.micro@3.0.0; do
  name=${package%@*}  # markdown-it's file contains these packages
  extract "$scratch" "$package" package.json
  license=$(tar -tzf "$scratch/$name"-*.tgz | grep -i 'package/LICENSE[^/]*$' | head -n 1)
  tar -xzOf "$scratch/$name"-*.tgz "$license" > "markdown-it-15.0.3/LICENSE-${name%.js}"
done
extract katex-0.19.1 katex@0.19.1 dist/katex.min.js LICENSE
extract highlight-11.12.0 @highlightjs/cdn-assets@11.12.0 es/highlight.min.js LICENSE
extract dompurify-3.5.0 dompurify@3.5.0 dist/purify.min.js LICENSE LICENSE-MPL
extract pdfjs-6.5.438 pdfjs-dist@6.5.438 build/pdf.min.mjs build/pdf.worker.min.mjs LICENSE

[ "${1:-}" != --record ] || find . -type f -path './*/*' | LC_ALL=C sort | xargs sha256sum > SHA256SUMS
sha256sum --check --quiet SHA256SUMS
