"""One OpenAI endpoint in front of the engines."""
