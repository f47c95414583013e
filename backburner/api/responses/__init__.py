"""POST /v1/responses: OpenAI's Responses API, without the storing of responses."""
