"""llama.cpp's HTTP server inside this process."""
