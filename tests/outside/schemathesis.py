"""schemathesis makes up requests from the OpenAPI document, and checks what the server answers.

    python tests/outside/schemathesis.py [EXAMPLES]

pip installs it into a virtual environment of its own. Ends with exit code 0 if no request, of
EXAMPLES for each operation, finds a server error or an answer that differs from the document.
"""

from __future__ import annotations

import sys

from serving import run, serving, venv_with


def main() -> int:
    examples = sys.argv[1] if len(sys.argv) > 1 else "50"
    programs = venv_with("schemathesis>=4")
    with serving("--max-seq-len", "256") as address:
        return run(
            programs / "schemathesis", "run", f"{address}/openapi.json",
            "--max-examples", examples, "--request-timeout", "60", "--no-color",
            "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,"
            "response_schema_conformance,response_headers_conformance",
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
