"""What a user gets of a run: results.json, samples, report.md, report.html, provenance.json."""
