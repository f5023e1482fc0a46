//! Bars beside their names, in groups: what has no axis of numbers.

use std::fmt::Write as _;

use super::{chart::colour, escape};

/// Pixels: of all, for names, for values, of a bar, between groups.
const WIDTH: f64 = 560.0;
const NAMES: f64 = 150.0;
const VALUES: f64 = 90.0;
const HEIGHT: f64 = 16.0;
const GAP: f64 = 8.0;
const TITLE: f64 = 34.0;

/// A bar.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    /// Its group, which is named once.
    pub(crate) name: String,
    /// The number of its colour and of its name in the legend.
    pub(crate) of: usize,
    /// How long it is.
    pub(crate) value: f64,
    /// What stands at its end.
    pub(crate) shown: String,
}

/// Bars in the order in which they stand, those of a group together.
#[derive(Debug, Clone)]
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) bars: Vec<Bar>,
    /// Names of the colours; one alone is not shown.
    pub(crate) series: Vec<String>,
}

impl Bars {
    /// Draws them.
    pub(super) fn draw(&self) -> String {
        let most = self.bars.iter().map(|bar| bar.value).filter(|value| value.is_finite());
        let most = most.fold(f64::MIN_POSITIVE, f64::max);
        let (mut body, mut y) = (String::new(), TITLE);
        if self.series.len() > 1 {
            for (number, name) in self.series.iter().enumerate() {
                // Writing to a string cannot fail.
                let _ = write!(
                    body,
                    "<rect x=\"10\" y=\"{y:.0}\" width=\"10\" height=\"10\" fill=\"{}\"/>\
                     <text x=\"26\" y=\"{:.0}\">{}</text>",
                    colour(number),
                    y + 10.0,
                    escape(name)
                );
                y += HEIGHT;
            }
            y += GAP;
        }
        let mut name = None;
        for bar in &self.bars {
            if name != Some(&bar.name) {
                y += if name.is_some() { GAP } else { 0.0 };
                let (x, y) = (NAMES - 8.0, y + 12.0);
                let _ = write!(
                    body,
                    "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"end\">{}</text>",
                    escape(&bar.name)
                );
                name = Some(&bar.name);
            }
            let value = if bar.value.is_finite() { bar.value.max(0.0) } else { 0.0 };
            let len = (WIDTH - NAMES - VALUES) * value / most;
            let _ = writeln!(
                body,
                "<rect x=\"{NAMES:.0}\" y=\"{:.0}\" width=\"{len:.1}\" height=\"{:.0}\" fill=\"{}\"/>\
                 <text x=\"{:.1}\" y=\"{:.0}\">{}</text>",
                y + 1.0,
                HEIGHT - 2.0,
                colour(bar.of),
                NAMES + len + 5.0,
                y + 12.0,
                escape(&bar.shown)
            );
            y += HEIGHT;
        }
        let (title, height) = (escape(&self.title), y + 10.0);
        format!(
            "<svg width=\"{WIDTH:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
             xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" font-size=\"12\" \
             fill=\"currentColor\">\
             <text x=\"280\" y=\"22\" font-size=\"15\" text-anchor=\"middle\">{title}</text>\n{body}</svg>"
        )
    }
}
