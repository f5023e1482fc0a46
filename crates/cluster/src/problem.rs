//! How a request is refused, in the manner of RFC 9457.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use netraid_control::text::escaped;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::mediator::Offer;

/// Characters of a problem that somebody else wrote.
const DETAIL_MAX: usize = 4096;
/// Reasons of an offer that somebody else made.
const REASONS_MAX: usize = 64;

/// Why a request was refused: what, which limit, what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// For programs.
    pub code: Code,
    /// For people.
    pub detail: String,
    /// The most that could be had instead, where a rate or space was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<Offer>,
}

/// Kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request makes no sense.
    Invalid,
    /// No token, or one that is not known.
    Unauthorized,
    /// The token's role does not allow it.
    Forbidden,
    /// There is no such thing.
    Absent,
    /// There is one already.
    Exists,
    /// Somebody else has it, or it is not in the right state.
    Conflict,
    /// Too little is left; see the offer.
    Short,
    /// Those that it takes cannot be reached, or do not keep up. Ask again.
    Unavailable,
    /// Something went wrong here; the log says more. Also whatever a later daemon says that is not known here.
    #[serde(other)]
    Internal,
}

impl Code {
    /// The status of HTTP that goes with it.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Invalid => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::Absent => StatusCode::NOT_FOUND,
            Self::Exists | Self::Conflict => StatusCode::CONFLICT,
            Self::Short => StatusCode::INSUFFICIENT_STORAGE,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// The beginning of a text, with escapes for what is not to be shown.
fn cut(text: &str) -> String {
    let end = text.char_indices().nth(DETAIL_MAX).map_or(text.len(), |(at, _)| at);
    escaped(&text[..end]).to_string()
}

impl Problem {
    /// A problem without an offer.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), offer: None }
    }

    /// As it is read by people who do not know who wrote it: no more than 4096 characters, and
    /// none that does something.
    #[must_use]
    pub fn readable(mut self) -> Self {
        self.detail = cut(&self.detail);
        if let Some(offer) = &mut self.offer {
            offer.reasons =
                offer.reasons.iter().take(REASONS_MAX).map(|reason| cut(reason)).collect();
        }
        self
    }

    /// [`Code::Invalid`].
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::Invalid, detail)
    }

    /// [`Code::Absent`].
    pub fn absent(detail: impl Into<String>) -> Self {
        Self::new(Code::Absent, detail)
    }

    /// [`Code::Internal`].
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(Code::Internal, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let mut response = (status, Json(self)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    }
}
