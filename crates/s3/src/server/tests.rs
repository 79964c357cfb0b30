use super::*;

#[tokio::test]
async fn a_panic_is_answered_as_a_fault_of_the_server() {
    let serving = std::future::poll_fn(|_| -> Poll<Response<Body>> { panic!("secret detail") });
    let response = caught(serving).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let text = response.into_body().bytes().unwrap();
    let text = std::str::from_utf8(&text).unwrap();
    assert!(text.contains("<Code>InternalError</Code>") && !text.contains("secret"), "{text}");
}
