"""What users would run instead of gpuos, in PyTorch: the other side of the bench suite cuda.

One request a line on stdin, one answer a line on stdout, both JSON; leaves at the end of stdin. Times are wall times in us
until the device has been synchronized; a copy of the result to the host is timed apart.
"""

import base64
import json
import os
import statistics
import sys
import threading
import time

# Answers have a file of their own: whatever a library prints goes to stderr.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def leave_with_parent(parent):
    # A compiler that hangs does not read stdin.
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


threading.Thread(target=leave_with_parent, args=(os.getppid(),), daemon=True).start()

import torch  # noqa: E402

torch.set_grad_enabled(False)

STEPS = 25
operands = {}
runners = {}


def chain(x, b):
    for _ in range(STEPS):
        x = x + b
        x = x * 0.99
        x = torch.relu(x)
        x = torch.nn.functional.gelu(x)
    return x


def floats(text):
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32).cuda()


def capture(x, b, warm=3):
    """The chain as a CUDA graph, and the tensor that its replay fills."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            chain(x, b)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(x, b)
    return graph, out


def runner(n, mode):
    """Runs the chain once and gives the tensor with its result."""
    if (n, mode) not in runners:
        x, b = operands[n]
        if mode == "eager":
            run = lambda: chain(x, b)  # noqa: E731
        elif mode == "graph":
            graph, out = capture(x, b)

            def run():
                graph.replay()
                return out
        else:
            compiled = torch.compile(chain)
            run = lambda: compiled(x, b)  # noqa: E731
        for _ in range(20):
            run()
        torch.cuda.synchronize()
        runners[(n, mode)] = run
    return runners[(n, mode)]


def timed(action, calls):
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def do_load(ask):
    operands[ask["n"]] = (floats(ask["x"]), floats(ask["b"]))
    return {}


def do_result(ask):
    out = runner(ask["n"], ask["mode"])().cpu()
    return {"values": base64.b64encode(out.numpy().tobytes()).decode()}


def do_chain(ask):
    run = runner(ask["n"], ask["mode"])

    def synchronized():
        run()
        torch.cuda.synchronize()

    for _ in range(10):
        synchronized()
    return {"us": timed(synchronized, ask["calls"]), "read_us": timed(lambda: run().cpu(), ask["calls"])}


def do_lengths(ask):
    """Each length once, with a graph that has to be recorded for it first: a graph has the shapes that it was recorded with."""
    times = []
    for n in ask["lengths"]:
        x = torch.randn(n, device="cuda")
        b = torch.randn(n, device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph, _ = capture(x, b, warm=0)
        graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
        del graph
    return {"us": times}


def do_matmul(ask):
    n, inner = ask["n"], 50
    if "matmul" not in operands:
        operands["matmul"] = tuple(torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
        operands["product"] = torch.empty(n, n, device="cuda", dtype=torch.float16)
    a, b = operands["matmul"]
    out = operands["product"]
    times = []
    until = time.perf_counter() + ask["seconds"]
    while time.perf_counter() < until or len(times) < 3:
        start = time.perf_counter()
        for _ in range(inner):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / inner * 1e6)
    return {"us": statistics.median(times)}


requests = {"load": do_load, "result": do_result, "chain": do_chain, "lengths": do_lengths, "matmul": do_matmul}


def answer(message):
    answers.write(json.dumps(message) + "\n")
    answers.flush()


torch.zeros(1, device="cuda").item()
answer({"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0)})
for line in sys.stdin:
    request = json.loads(line)
    try:
        answer(requests[request["do"]](request))
    except Exception as error:  # it is told, and the next request may do better
        answer({"error": f"{type(error).__name__}: {error}"[:500]})
os._exit(0)
