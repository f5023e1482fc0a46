//! The page of a run: score sheets, findings, requirements, baselines.

use std::fmt::Write as _;

use anyhow::Result;
use netraid_evaluate::record::Evaluation;

use super::show;

/// A page that needs nothing from elsewhere.
pub(super) fn page(evaluation: &Evaluation) -> Result<String> {
    let run = &evaluation.run;
    let title = format!("Evaluation {}", run.id);
    let mut body = format!(
        "<h1>{}</h1>\n<p>{} on {}, netraid {}</p>\n",
        escape(&title),
        escape(&run.started_at),
        escape(&run.machine.host),
        escape(&run.netraid)
    );
    for report in &evaluation.targets {
        writeln!(body, "<h2>{}</h2>", escape(&report.target.address))?;
        let findings = report.findings.iter().map(|finding| {
            let mut evidence = finding.evidence.clone();
            evidence.push(format!("threshold: {}", finding.threshold));
            vec![show::mark(finding.state).to_owned(), finding.text.clone(), evidence.join("\n")]
        });
        body += &table(&["", "Finding", "Evidence"], findings);
        let sheet = report.sheet.iter().map(|line| {
            vec![
                line.test.to_string(),
                line.title.clone(),
                line.figure.map(show::figure).unwrap_or_default(),
                line.of_best.map(|share| format!("{:.0}%", share * 100.0)).unwrap_or_default(),
                line.limit.clone().unwrap_or_default(),
                line.remarks.join("; "),
            ]
        });
        body += &table(&["Test", "", "Figure", "Of the best", "Limit", "Remarks"], sheet);
    }
    let verdicts = evaluation.requirements.iter().map(|verdict| {
        let met = if verdict.met { "met" } else { "NOT MET" };
        let target = verdict.target.to_string();
        vec![met.to_owned(), target, verdict.requirement.clone(), verdict.found.clone()]
    });
    body += "<h2>Requirements</h2>\n";
    body += &table(&["", "Target", "Requirement", "Found"], verdicts);
    body += "<h2>Baselines</h2>\n";
    let baselines = evaluation.baselines.iter();
    let baselines =
        baselines.map(|line| vec![show::baseline(line), format!("{:.0} MB/s", line.mb_per_s)]);
    body += &table(&["What", "Rate"], baselines);
    let settings = serde_json::to_string_pretty(&run.settings)?;
    writeln!(body, "<h2>Settings</h2>\n<pre>{}</pre>", escape(&settings))?;
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        escape(&title)
    ))
}

const STYLE: &str =
    "body { font-family: sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin-bottom: 1em; }
th, td { border: 1px solid #ddd; padding: 2px 8px; text-align: left; white-space: pre-line; }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto; }
";

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let row = |tag: &str, cells: Vec<String>| {
        let cells: String =
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = row("th", head.iter().map(|cell| (*cell).to_owned()).collect());
    let rows: String = rows.map(|cells| row("td", cells)).collect();
    format!("<table>\n{head}{rows}</table>\n")
}

fn escape(text: &str) -> String {
    let pairs = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;")];
    pairs.iter().fold(text.to_owned(), |text, (plain, code)| text.replace(plain, code))
}
