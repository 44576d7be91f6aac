# One image for a CPU and, with `docker run --gpus all`, a GPU. About 5.6 GB, an estimate: 5.3 GB of Python packages (most of it
# the CUDA libraries of PyPI's torch), the rest for the base image and the weights.
FROM python:3.12-slim

RUN useradd --create-home --uid 1000 lab
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .

USER lab
ENV PYTHONUNBUFFERED=1
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=90s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/', timeout=4)"]
CMD ["python", "app.py", "--host", "0.0.0.0", "--port", "7860"]
