//! One plot as SVG: lines through means, and bars of their confidence intervals.

use anyhow::Result;
use netraid_model::Interval;
use plotters::prelude::{
    ChartBuilder, Circle, Color as _, IntoDrawingArea as _, LineSeries, PathElement, RGBColor,
    SVGBackend, WHITE,
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

/// A line of a plot.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, Interval)>,
}

/// The colour of the line of that number, as HTML has it.
pub(crate) fn colour(number: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[number % COLOURS.len()];
    format!("rgb({red}, {green}, {blue})")
}

/// Draws a plot; both axes begin at zero.
pub(crate) fn draw(title: &str, x: &str, y: &str, series: &[Series]) -> Result<String> {
    let points = || series.iter().flat_map(|series| &series.points);
    let right = points().map(|(x, _)| *x).fold(0.0, f64::max).max(1e-9) * 1.02;
    let top = points().map(|(_, y)| y.high).fold(0.0, f64::max).max(1e-9) * 1.08;
    // Without a point behind whole numbers, and without the last digits of sums of tenths.
    let label = |value: &f64| ((value * 1e6).round() / 1e6).to_string();
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut plot = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(0.0..right, 0.0..top)?;
        plot.configure_mesh()
            .x_desc(x)
            .y_desc(y)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .max_light_lines(1)
            .draw()?;
        for (series, colour) in series.iter().zip(COLOURS.iter().cycle()) {
            let means = series.points.iter().map(|(x, y)| (*x, y.mean));
            plot.draw_series(LineSeries::new(means.clone(), colour.stroke_width(2)))?;
            plot.draw_series(means.map(|at| Circle::new(at, 3, colour.filled())))?;
            let bars = series.points.iter().map(|(x, y)| {
                PathElement::new([(*x, y.low), (*x, y.high)], colour.stroke_width(1))
            });
            plot.draw_series(bars)?;
        }
        area.present()?;
    }
    Ok(svg)
}
