# SPDX-License-Identifier: Apache-2.0
"""The site: scripts/site.sh builds it, and a link that leads nowhere is an error."""
import pathlib
import subprocess

import dsakit

ROOT = pathlib.Path(__file__).resolve().parent.parent
XML = ROOT / "build" / "site" / "doxygen"

project, author, release = "dsakit", "the authors of dsakit", dsakit.__version__
copyright = "the authors of dsakit, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "breathe"]
html_theme, html_title = "furo", f"dsakit {release}"
exclude_patterns = ["requirements.txt"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]  # text blocks that show a message are no language

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
maximum_signature_line_length = 100

breathe_projects = {"dsakit": str(XML / "xml")}
breathe_default_project = "dsakit"


def read_headers():
    """Doxygen's reading of the headers, but for the lists of fields: the tables of the operators' pages are made of them."""
    XML.mkdir(parents=True, exist_ok=True)
    settings = f"""
        INPUT = {ROOT / "include" / "dsakit"}
        FILE_PATTERNS = *.hpp *.h
        OUTPUT_DIRECTORY = {XML}
        GENERATE_HTML = NO
        GENERATE_LATEX = NO
        GENERATE_XML = YES
        XML_PROGRAMLISTING = NO
        EXTRACT_ALL = YES
        EXTENSION_MAPPING = h=C++
        MACRO_EXPANSION = YES
        INPUT_FILTER = "sed -e '/^template <class A, class O, class V>/,/^}}/d' -e '/^inline constexpr std::string_view/,/;$/d'"
        QUIET = YES
        WARN_IF_UNDOCUMENTED = NO
        WARN_IF_DOC_ERROR = NO
    """
    subprocess.run(["doxygen", "-"], input=settings, text=True, check=True)


read_headers()


def setup(app):
    """A docstring of an operator is text with a list of parameters in columns, not reStructuredText."""
    app.connect("autodoc-process-docstring", as_text)


def as_text(app, what, name, obj, options, lines):
    if what == "function" and lines:
        lines[:] = [lines[0], "", ".. code-block:: text", "", *("   " + line for line in lines[1:]), ""]
