//! One connection: TLS, requests, and what the limiter is told of both.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::ConnectInfo,
    http::{HeaderValue, Request, Response, header},
    response::IntoResponse as _,
};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use netraid_control::limiter::{Ending, Shortage};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_rustls::TlsAcceptor;

use super::{bearer, doors::Place};
use crate::{
    access::TokenDigest,
    gathered::Gathered,
    problem::{Code, Problem},
};

/// Bytes of a header, and of what is read ahead of a body, at most.
const BUFFER_LEN_MAX: usize = 32 << 10;

/// What every connection of a server is served with.
#[derive(Clone)]
pub(super) struct Serving {
    pub(super) router: Router,
    pub(super) knows: Arc<dyn Fn(&TokenDigest) -> bool + Send + Sync>,
    /// None: in the clear.
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) stopped: watch::Receiver<bool>,
}

impl Serving {
    /// Serves one connection to its end.
    pub(super) async fn serve(self, stream: TcpStream, peer: SocketAddr, place: Arc<Place>) {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%peer, "a connection failed at once: {error}");
            return;
        }
        let tls = self.tls.clone();
        let (own, work) = (Arc::clone(&place), async {
            let Some(tls) = tls else { return self.converse(stream, peer, place).await };
            match tls.accept(stream).await {
                Ok(stream) => self.converse(stream, peer, place).await,
                Err(error) => tracing::debug!(%peer, "no TLS: {error}"),
            }
        });
        if let Err(ending) = while_allowed(&own, work).await {
            tracing::debug!(%peer, "a connection is closed: {ending:?}");
        }
    }

    /// Answers requests until the peer, or the server, asks no more.
    async fn converse<S>(self, stream: S, peer: SocketAddr, place: Arc<Place>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { router, knows, mut stopped, .. } = self;
        let mut watched = Watched { inner: stream, place: Arc::clone(&place) };
        let own = Arc::clone(&place);
        let answers = service_fn(move |request| {
            let known = bearer(Request::headers(&request)).filter(|token| knows(token));
            let router = router.clone();
            let place = Arc::clone(&own);
            async move { Ok::<_, Infallible>(answer(router, request, peer, known, place).await) }
        });
        let connection = http1::Builder::new()
            // The limiter has the time.
            .header_read_timeout(None)
            .max_buf_size(BUFFER_LEN_MAX)
            .serve_connection(TokioIo::new(&mut watched), answers);
        let (mut stop, mut is_stopping) = (pin!(stopped.wait_for(|stop| *stop)), false);
        let ended = {
            let mut connection = pin!(connection);
            poll_fn(|context| {
                if !is_stopping && stop.as_mut().poll(context).is_ready() {
                    is_stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                connection.as_mut().poll(context)
            })
            .await
        };
        if let Err(error) = &ended {
            tracing::debug!(%peer, "a connection failed: {error}");
        }
        // A server that ends waits for nobody.
        if !is_stopping && let Err(error) = linger(watched, &place).await {
            tracing::debug!(%peer, "a connection failed: {error}");
        }
    }
}

/// Says that nothing more comes, and reads what the peer still sends until it has heard: a connection that is
/// closed with something unread takes the last answer with it.
async fn linger<S>(mut stream: Watched<S>, place: &Place) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    place.handle_last_answered();
    // It is done already, but after an error.
    stream.shutdown().await?;
    let mut thrown_away = vec![0; BUFFER_LEN_MAX];
    loop {
        let len = stream.read(&mut thrown_away).await?;
        if len == 0 || !place.handle_thrown_away(len) {
            return Ok(());
        }
    }
}

/// Does something for as long as the limiter leaves the connection its place. What is done here is polled
/// again at each of the limiter's times.
async fn while_allowed<T>(place: &Place, work: impl Future<Output = T>) -> Result<T, Ending> {
    let (mut work, mut timer) = (pin!(work), pin!(sleep_until(Instant::now())));
    let mut called = pin!(place.called.notified());
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        while called.as_mut().poll(context).is_ready() {
            called.set(place.called.notified());
        }
        if let Some(ending) = place.must_close() {
            return Poll::Ready(Err(ending));
        }
        if let Some(at) = place.next_timeout() {
            if timer.deadline() != at {
                timer.as_mut().reset(at);
            }
            if timer.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    })
    .await
}

/// Answers a request; of a stranger's, the body is not there for anybody.
async fn answer(
    router: Router,
    request: Request<Incoming>,
    peer: SocketAddr,
    known: Option<TokenDigest>,
    place: Arc<Place>,
) -> Response<Sent> {
    let is_known = known.is_some();
    let shortage = place.handle_header(known);
    let (mut parts, body) = request.into_parts();
    parts.extensions.insert(ConnectInfo(peer));
    let body = match is_known && shortage.is_none() {
        true => Body::new(Received::new(body, Arc::clone(&place))),
        false => Body::empty(),
    };
    let routed = TowerToHyperService::new(router).call(Request::from_parts(parts, body));
    let mut routed = pin!(routed);
    let (mut response, mut is_last) = match shortage {
        Some(shortage) => (refusal(shortage), true),
        None => {
            poll_fn(|context| {
                if let Poll::Ready(Ok(response)) = routed.as_mut().poll(context) {
                    return Poll::Ready((response, false));
                }
                // The connection is polled when it is time to ask.
                let shortage = place.must_answer();
                shortage.map_or(Poll::Pending, |shortage| Poll::Ready((refusal(shortage), true)))
            })
            .await
        }
    };
    is_last |= !is_known;
    if is_last {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    place.handle_answer();
    response.map(|inner| Sent { inner, place })
}

fn refusal(shortage: Shortage) -> Response<Body> {
    Problem::new(Code::Unavailable, shortage.to_string()).into_response()
}

/// A connection of which the limiter is told what comes and goes.
struct Watched<S> {
    inner: S,
    place: Arc<Place>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.place.handle_bytes();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let len = ready!(Pin::new(&mut self.inner).poll_write(context, bytes))?;
        self.place.handle_sent();
        Poll::Ready(Ok(len))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let len = ready!(Pin::new(&mut self.inner).poll_write_vectored(context, bytes))?;
        self.place.handle_sent();
        Poll::Ready(Ok(len))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// The body of a request. The memory that it takes is counted as it comes.
struct Received<B> {
    inner: Gathered<B>,
    place: Arc<Place>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> Received<B> {
    fn new(inner: B, place: Arc<Place>) -> Self {
        if inner.is_end_stream() {
            place.handle_body_end();
        }
        Self { inner: Gathered::new(inner), place }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Received<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let before = self.inner.taken_len();
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        let taken_len = self.inner.taken_len() - before;
        if taken_len > 0 && !self.place.handle_body(taken_len) {
            // The request is refused by whoever polls this.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = ready!(polled);
        if frame.is_none() || self.inner.is_end_stream() {
            self.place.handle_body_end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> Drop for Received<B> {
    fn drop(&mut self) {
        self.place.handle_body_end();
    }
}

/// The body of an answer.
struct Sent {
    inner: Body,
    place: Arc<Place>,
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.place.handle_answered();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use http_body_util::BodyExt as _;
    use netraid_control::limiter::Limits;

    use super::*;
    use crate::{gathered::tests::Pieces, serve::doors::Doors};

    /// The place of a connection whose request has said its header.
    fn place(limits: Limits) -> Arc<Place> {
        let doors = Arc::new(Doors::new(limits));
        let place = doors.arrive("127.0.0.1:1".parse().unwrap()).unwrap();
        assert_eq!(place.handle_header(Some(TokenDigest([1; 32]))), None);
        place
    }

    #[tokio::test]
    async fn what_is_kept_of_a_request_is_in_proportion_to_its_length_however_small_its_pieces() {
        for is_sized in [true, false] {
            let pieces = Pieces::new(100_000, 1, is_sized);
            let kept_most = Arc::clone(&pieces.kept_most);
            let body = Received::new(pieces, place(Limits::DEFAULT));
            let body = body.collect().await.unwrap().to_bytes();
            assert_eq!(body.len(), 100_000);
            assert_eq!(kept_most.load(Ordering::Relaxed), 1, "buffers that its pieces came in");
        }
    }

    #[tokio::test]
    async fn a_request_in_small_pieces_is_refused_where_the_memory_ends() {
        for is_sized in [true, false] {
            let place = place(Limits { bodies_bytes: 200_000, ..Limits::DEFAULT });
            let mut body = Received::new(Pieces::new(100_001, 1, is_sized), Arc::clone(&place));
            let (mut len, mut shortage) = (0, None);
            poll_fn(|context| {
                while let Poll::Ready(part) = Pin::new(&mut body).poll_frame(context) {
                    len += part.unwrap().unwrap().into_data().unwrap().len();
                }
                shortage = place.must_answer();
                Poll::Ready(())
            })
            .await;
            // Of a length that nobody knows, what the last part takes is counted as a whole.
            assert_eq!(len, 6 * (16 << 10));
            assert_eq!(shortage, Some(Shortage::Bodies(200_000)));
        }
    }
}
