//! Pages with figures and tables that need nothing beside themselves: no network, no scripts. What is put
//! into them is text, and cannot become markup.
//!
//! Colours follow the reader's choice of light or dark; figures shrink, and wide tables scroll for
//! themselves, where a screen is narrow.

mod bars;
mod chart;

use anyhow::Result;

pub(crate) use bars::{Bar, Bars};
pub(crate) use chart::{Axis, Chart, Scale, Series, Spread, Stroke};

/// How something that stands out is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// It speaks against what the page is about.
    Bad,
    /// It should be known.
    Note,
    /// It speaks for it.
    Good,
}

/// A page while it is written, from top to bottom.
#[derive(Debug)]
pub(crate) struct Page {
    title: String,
    body: String,
}

impl Page {
    /// A page with this title, which is its first heading.
    pub(crate) fn new(title: &str) -> Self {
        let title = escape(title);
        let body = format!("<h1>{title}</h1>\n");
        Self { title, body }
    }

    /// A heading of a part.
    pub(crate) fn heading(&mut self, text: &str) {
        self.body += &format!("<h2>{}</h2>\n", escape(text));
    }

    /// A heading within a part.
    pub(crate) fn subheading(&mut self, text: &str) {
        self.body += &format!("<h3>{}</h3>\n", escape(text));
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        self.body += &format!("<p>{}</p>\n", escape(text));
    }

    /// Sentences that stand out.
    pub(crate) fn findings(&mut self, texts: &[String]) {
        let items: String =
            texts.iter().map(|text| format!("<li>{}</li>\n", escape(text))).collect();
        self.body += &format!("<ul class=\"findings\">\n{items}</ul>\n");
    }

    /// Something that stands out: what it is, what is said of it, and lines below that.
    pub(crate) fn notice(&mut self, tone: Tone, title: &str, lines: &[String]) {
        let class = match tone {
            Tone::Bad => "bad",
            Tone::Note => "note",
            Tone::Good => "good",
        };
        let (first, rest) =
            lines.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let items: String =
            rest.iter().map(|text| format!("<li>{}</li>\n", escape(text))).collect();
        let list = if rest.is_empty() { String::new() } else { format!("<ul>\n{items}</ul>\n") };
        self.body += &format!(
            "<section class=\"notice {class}\">\n<h3>{}</h3>\n<p>{}</p>\n{list}</section>\n",
            escape(title),
            escape(first)
        );
    }

    /// A table: the head, then rows. Columns of numbers stand right.
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) {
        let is_number = |column: usize| {
            let cell = rows.iter().skip(1).filter_map(|row| row.get(column));
            cell.clone().any(|cell| is_number(cell))
                && cell.clone().all(|cell| is_number(cell) || matches!(cell.as_str(), "" | "-"))
        };
        let columns: Vec<bool> = (0..rows.first().map_or(0, Vec::len)).map(is_number).collect();
        self.body += "<div class=\"wide\"><table>\n";
        for (index, row) in rows.iter().enumerate() {
            let tag = if index == 0 { "th" } else { "td" };
            self.body += "<tr>";
            for (column, cell) in row.iter().enumerate() {
                let is_number = columns.get(column).is_some_and(|is_number| *is_number);
                let class = if is_number { " class=\"n\"" } else { "" };
                self.body += &format!("<{tag}{class}>{}</{tag}>", escape(cell));
            }
            self.body += "</tr>\n";
        }
        self.body += "</table></div>\n";
    }

    /// Names and values.
    pub(crate) fn facts(&mut self, facts: &[(&str, String)]) {
        self.body += "<div class=\"wide\"><table>\n";
        for (name, value) in facts {
            let (name, value) = (escape(name), escape(value));
            self.body += &format!("<tr><th>{name}</th><td>{value}</td></tr>\n");
        }
        self.body += "</table></div>\n";
    }

    /// Text as it is, with its lines.
    pub(crate) fn text(&mut self, text: &str) {
        self.body += &format!("<pre>{}</pre>\n", escape(text));
    }

    /// Charts beside each other under one legend, which is that of the first one.
    ///
    /// # Errors
    /// When a chart cannot be drawn.
    pub(crate) fn charts(&mut self, charts: &[Chart]) -> Result<()> {
        let mut legend = String::new();
        for (number, series) in
            charts.first().map_or(&[][..], |chart| &chart.series).iter().enumerate()
        {
            let mark = match series.stroke {
                Stroke::Solid => "&#9632;",
                Stroke::Dashed => "&#9476;",
            };
            let colour = chart::colour(series.colour.unwrap_or(number));
            legend +=
                &format!("<span style=\"color: {colour}\">{mark} {}</span> ", escape(&series.name));
        }
        self.body += &format!("<p class=\"legend\">{legend}</p>\n<div class=\"plots\">\n");
        for chart in charts {
            self.body += &format!("<figure>{}</figure>\n", chart.draw()?);
        }
        self.body += "</div>\n";
        Ok(())
    }

    /// Bars, by groups.
    pub(crate) fn bars(&mut self, bars: &Bars) {
        self.body += &format!("<figure>{}</figure>\n", bars.draw());
    }

    /// The whole document.
    pub(crate) fn finish(self) -> String {
        let Self { title, body } = self;
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <link rel=\"icon\" href=\"data:,\">\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
        )
    }
}

const STYLE: &str = "\
:root { color-scheme: light dark; --line: #ddd; --soft: #f4f4f4; --mark: #b35900;
  --bad: #b00020; --good: #00704a; }
@media (prefers-color-scheme: dark) { :root { --line: #444; --soft: #262626; --mark: #e69f00;
  --bad: #ff6b81; --good: #4cc38a; } }
body { font-family: sans-serif; line-height: 1.4; max-width: 1180px; margin: 2em auto; padding: 0 1em;
  color: CanvasText; background: Canvas; overflow-wrap: anywhere; }
h2 { margin-top: 1.6em; }
.plots { display: flex; flex-wrap: wrap; gap: 12px; }
figure { margin: 0; max-width: 100%; }
figure svg { max-width: 100%; height: auto; border: 1px solid var(--line); box-sizing: border-box;
  display: block; }
.legend span { font-weight: bold; margin-right: 1em; display: inline-block; }
.findings { border-left: 4px solid var(--mark); padding: .6em 1em .6em 2em; background: var(--soft); }
.notice { border-left: 4px solid var(--mark); padding: .2em 1em; margin: 1em 0; background: var(--soft); }
.notice h3 { margin: .4em 0; }
.notice p, .notice ul { margin: .4em 0; }
.notice.bad { border-color: var(--bad); }
.notice.bad h3 { color: var(--bad); }
.notice.good { border-color: var(--good); }
.notice.good h3 { color: var(--good); }
.wide { overflow-x: auto; margin: 1em 0; }
table { border-collapse: collapse; overflow-wrap: normal; }
th, td { border: 1px solid var(--line); padding: 2px 8px; text-align: left; vertical-align: top; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: var(--soft); padding: 1em; overflow-x: auto; }
";

/// Whether a cell is a number, perhaps with its unit.
fn is_number(cell: &str) -> bool {
    cell.starts_with(|first: char| first.is_ascii_digit()) && cell.chars().count() < 30
}

/// Text that shows as it is, also within a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_and_nothing_is_fetched() {
        let evil = "<img src=x onerror=\"alert('1')\">";
        let mut page = Page::new(evil);
        page.heading(evil);
        page.paragraph(evil);
        page.findings(&[evil.to_owned()]);
        page.table(&[vec![evil.to_owned()], vec![evil.to_owned()]]);
        page.facts(&[(evil, evil.to_owned())]);
        page.notice(Tone::Bad, evil, &[evil.to_owned(), evil.to_owned()]);
        page.text(evil);
        let points = vec![(1.0, Spread::of(2.0)), (2.0, Spread::of(4.0))];
        let chart =
            Chart::new(evil, Axis::new(evil), Axis::new(evil)).with(Series::new(evil, points));
        page.charts(&[chart]).unwrap();
        let bar = Bar { name: evil.to_owned(), of: 0, value: 3.0, shown: evil.to_owned() };
        page.bars(&Bars { title: evil.to_owned(), bars: vec![bar], series: vec![evil.to_owned()] });
        let page = page.finish();
        assert!(!page.contains("<img") && !page.contains("alert('"));
        assert!(page.contains("&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;"));
        // The name of SVG is not fetched.
        assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http"));
        assert_eq!(page.matches("<svg").count(), 2);
    }
}
