package engine

// AlivePath is what to ask a server of a kind for to learn whether it serves: a
// path that no model works for. /health would not do for all of them: SGLang's
// generates a token unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION is off, TGI's
// does until a generation has succeeded, LiteLLM's calls every model. A kind that
// is not known by the config is asked for what all that is OpenAI-compatible
// lists; a 404 to that is an answer too.
func AlivePath(kind string) string {
	switch kind {
	case KindEmulator, KindVLLM, KindVLLMSleep, KindLullVLLM, KindLlamaCPP:
		return "/health"
	case KindTriton:
		return "/v2/health/ready"
	case KindTGI:
		return "/info"
	case KindOllama:
		return "/api/version"
	}
	return "/v1/models"
}
