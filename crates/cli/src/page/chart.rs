//! One plot as SVG: lines through points, and bars of what they scatter.

use std::ops::Range;

use anyhow::Result;
use plotters::{
    coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter},
    prelude::{
        ChartBuilder, Circle, Color as _, DashedLineSeries, IntoDrawingArea as _, LineSeries,
        PathElement, RGBColor, SVGBackend,
    },
};

/// Pixels.
const SIZE: (u32, u32) = (560, 360);
/// Colours that can be told apart also by those who see fewer of them.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(120, 120, 120),
    RGBColor(0, 0, 0),
];
/// Labels of an axis, at most.
const LABELS: usize = 11;
/// Points of a grid, at most.
const LABELS_MAX: u16 = 64;

/// A value, and what its measurements or chances scatter between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// A value alone.
    pub(crate) const fn of(mean: f64) -> Self {
        Self { mean, low: mean, high: mean }
    }

    /// A value, and the least and the largest of its rounds.
    pub(crate) fn around(mean: f64, rounds: &[f64]) -> Self {
        let low = rounds.iter().copied().fold(mean, f64::min);
        Self { mean, low, high: rounds.iter().copied().fold(mean, f64::max) }
    }
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stroke {
    /// Through its points, which show.
    Solid,
    /// What would be, or is computed.
    Dashed,
}

/// A line of a plot.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, Spread)>,
    pub(crate) stroke: Stroke,
    /// The number of its colour; that of its place when none.
    pub(crate) colour: Option<usize>,
}

impl Series {
    /// A solid line.
    pub(crate) fn new(name: impl Into<String>, points: Vec<(f64, Spread)>) -> Self {
        Self { name: name.into(), points, stroke: Stroke::Solid, colour: None }
    }

    /// A dashed line, in the colour of that number.
    pub(crate) fn dashed(name: impl Into<String>, points: Vec<(f64, f64)>, colour: usize) -> Self {
        let points = points.into_iter().map(|(x, y)| (x, Spread::of(y))).collect();
        Self { name: name.into(), points, stroke: Stroke::Dashed, colour: Some(colour) }
    }
}

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From zero, evenly.
    Linear,
    /// The same, for what comes in whole numbers.
    Counts,
    /// By powers of two, between the points.
    Powers,
    /// The same, for bytes.
    Bytes,
}

/// An axis.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) scale: Scale,
}

impl Axis {
    /// An axis from zero.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), scale: Scale::Linear }
    }

    /// An axis that is divided otherwise; the vertical one of a chart is always from zero.
    pub(crate) fn by(name: impl Into<String>, scale: Scale) -> Self {
        Self { name: name.into(), scale }
    }
}

/// A plot.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
}

/// The colour of that number, as HTML has it.
pub(crate) fn colour(number: usize) -> String {
    match COLOURS[number % COLOURS.len()] {
        RGBColor(0, 0, 0) => "currentColor".to_owned(),
        RGBColor(red, green, blue) => format!("rgb({red}, {green}, {blue})"),
    }
}

impl Chart {
    /// A plot without lines yet.
    pub(crate) fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: Vec::new() }
    }

    /// It with a line more.
    #[must_use]
    pub(crate) fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// Draws it. Black is the colour of the text around it.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub(crate) fn draw(&self) -> Result<String> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let top = points().map(|(_, y)| y.high).fold(0.0, f64::max).max(1e-9) * 1.08;
        let across = Ticks::of(self.x.scale, points().map(|(x, _)| *x));
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let mut plot = ChartBuilder::on(&area)
                .caption(&self.title, ("sans-serif", 18))
                .margin(10)
                .x_label_area_size(42)
                .y_label_area_size(64)
                .build_cartesian_2d(across, 0.0..top)?;
            plot.configure_mesh()
                .x_desc(&self.x.name)
                .y_desc(&self.y.name)
                .x_labels(LABELS)
                .label_style(("sans-serif", 13))
                .y_label_formatter(&|value| number(*value))
                .max_light_lines(1)
                .draw()?;
            for (place, series) in self.series.iter().enumerate() {
                let colour = COLOURS[series.colour.unwrap_or(place) % COLOURS.len()];
                let means = series.points.iter().map(|(x, y)| (*x, y.mean));
                match series.stroke {
                    Stroke::Dashed => {
                        let style = colour.stroke_width(2);
                        plot.draw_series(DashedLineSeries::new(means.clone(), 6, 4, style))?;
                        plot.draw_series(means.map(|at| Circle::new(at, 2, colour.filled())))?;
                        continue;
                    }
                    Stroke::Solid => {}
                }
                plot.draw_series(LineSeries::new(means.clone(), colour.stroke_width(2)))?;
                plot.draw_series(means.map(|at| Circle::new(at, 3, colour.filled())))?;
                let bars = series.points.iter().map(|(x, y)| {
                    PathElement::new([(*x, y.low), (*x, y.high)], colour.stroke_width(1))
                });
                plot.draw_series(bars)?;
            }
            area.present()?;
        }
        Ok(svg.replace("\"#000000\"", "\"currentColor\"").replace("\"#000\"", "\"currentColor\""))
    }
}

/// A number without a point behind whole ones, and without the last digits of sums of tenths.
fn number(value: f64) -> String {
    ((value * 1e6).round() / 1e6).to_string()
}

/// The horizontal axis: evenly from zero, or by powers of two.
#[derive(Debug, Clone)]
struct Ticks {
    scale: Scale,
    range: Range<f64>,
}

impl Ticks {
    fn of(scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Self {
        let right = values.clone().fold(0.0, f64::max);
        let range = match scale {
            Scale::Linear | Scale::Counts => 0.0..right.max(1e-9) * 1.02,
            Scale::Powers | Scale::Bytes => {
                let left = values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
                let left = if left.is_finite() { left } else { 1.0 };
                // Room beside the first and the last point.
                left.log2() - 0.3..right.max(2.0 * left).log2() + 0.3
            }
        };
        Self { scale, range }
    }
}

impl Ranged for Ticks {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let at = match self.scale {
            Scale::Linear | Scale::Counts => *value,
            Scale::Powers | Scale::Bytes => value.max(f64::MIN_POSITIVE).log2(),
        };
        plotters::coord::types::RangedCoordf64::from(self.range.clone()).map(&at, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                plotters::coord::types::RangedCoordf64::from(self.range.clone()).key_points(hint)
            }
            Scale::Counts => {
                let last = self.range.end.floor();
                let step = (last / hint.max_num_points().max(1) as f64).ceil().max(1.0);
                let counts = (0..=LABELS_MAX).map(|count| f64::from(count) * step);
                counts.take_while(|count| *count <= last).collect()
            }
            Scale::Powers | Scale::Bytes => {
                let (first, last) = (self.range.start.ceil(), self.range.end.floor());
                let powers = (0..=LABELS_MAX).map(|step| first + f64::from(step));
                let powers: Vec<f64> =
                    powers.take_while(|power| *power <= last).map(f64::exp2).collect();
                let each = powers.len().div_ceil(hint.max_num_points().max(1)).max(1);
                powers.into_iter().step_by(each).collect()
            }
        }
    }

    fn range(&self) -> Range<f64> {
        match self.scale {
            Scale::Linear | Scale::Counts => self.range.clone(),
            Scale::Powers | Scale::Bytes => self.range.start.exp2()..self.range.end.exp2(),
        }
    }
}

impl ValueFormatter<f64> for Ticks {
    fn format_ext(&self, value: &f64) -> String {
        match self.scale {
            Scale::Linear | Scale::Counts | Scale::Powers => number(*value),
            Scale::Bytes => bytes(*value),
        }
    }
}

/// `4K`, `1M`: powers of 1024.
fn bytes(value: f64) -> String {
    let units = [("G", 1_073_741_824.0), ("M", 1_048_576.0), ("K", 1024.0)];
    match units.iter().find(|(_, factor)| value >= *factor) {
        Some((unit, factor)) => format!("{}{unit}", number(value / factor)),
        None => number(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_labelled_by_powers_of_two() {
        let points = vec![(4096.0, Spread::of(1.0)), (4194304.0, Spread::around(3.0, &[2.0, 5.0]))];
        let chart = Chart::new("rates", Axis::by("request", Scale::Bytes), Axis::new("MB/s"))
            .with(Series::new("one", points));
        let svg = chart.draw().unwrap();
        let has = |label: &str| svg.lines().any(|line| line.trim() == label);
        assert!(["4K", "16K", "1M", "4M"].iter().all(|label| has(label)), "{svg}");
        assert!(!svg.contains("#000000"), "black would not show on a dark page");
    }

    #[test]
    fn counts_have_no_fractions() {
        let points = (1..=5).map(|count| (f64::from(count), Spread::of(50.0))).collect();
        let chart = Chart::new("rates", Axis::by("members", Scale::Counts), Axis::new("MB/s"))
            .with(Series::new("one", points));
        let svg = chart.draw().unwrap();
        let has = |label: &str| svg.lines().any(|line| line.trim() == label);
        assert!(has("5") && !has("0.5") && !has("1.5"), "{svg}");
    }

    #[test]
    fn a_chart_without_points_is_drawn_all_the_same() {
        for scale in [Scale::Linear, Scale::Counts, Scale::Powers, Scale::Bytes] {
            let chart = Chart::new("none", Axis::by("x", scale), Axis::new("y"));
            assert!(chart.draw().unwrap().starts_with("<svg"));
        }
    }
}
