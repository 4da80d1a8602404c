import sys, time, cProfile, pstats, tempfile
from pathlib import Path
import torch
from torch import nn
sys.path.insert(0, str(Path(__file__).parent))
from gpu_tasks import TASKS
import cordee
from cordee.core.plan import Plan
from cordee.train.job import Save, Stop
from cordee.train.session import Session
from cordee.train.callbacks import Callback
from cordee.train import loop
task = TASKS["resnet18"]
torch.manual_seed(0)
model = task.model().cuda().to(memory_format=torch.channels_last)
opt = task.optimizer(model.parameters())
x, y = (t.cuda() for t in task.data())
@torch.compile
def loss_of(x, y): return task.loss(model(x), y)
def hand(n):
    order = torch.randperm(50000, device="cuda")
    for i in range(n):
        ids = order[i%90*512:(i%90+1)*512]
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(x[ids], y[ids])
        loss.backward(); opt.step()
def timed(f, n):
    torch.cuda.synchronize(); t=time.perf_counter(); f(n); h=time.perf_counter()-t; torch.cuda.synchronize(); return h/n*1e3, (time.perf_counter()-t)/n*1e3
hand(20)
for _ in range(3): print("hand host, wall ms", timed(hand, 100), flush=True)
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CUDA]) as p:
    hand(20); torch.cuda.synchronize()
tot=sum(e.self_device_time_total for e in p.key_averages()); print("gpu busy ms/step", tot/20/1e3)
del opt
class T(Callback):
    def on_start(self, s): self.n=0
    def on_step(self, s, step):
        self.n+=1
        if self.n==20: torch.cuda.synchronize(); self.t=time.perf_counter()
        if self.n in (120,220,320):
            h=time.perf_counter()-self.t; torch.cuda.synchronize(); print("cordee host, wall ms", h*10, (time.perf_counter()-self.t)*10, flush=True); self.t=time.perf_counter()
        if self.n==320: self.p=cProfile.Profile(); self.p.enable()
        if self.n==420:
            self.p.disable(); pstats.Stats(self.p).sort_stats("tottime").print_stats(28)
job = cordee.Job(model=task.model, loss=task.loss, optimizer=task.optimizer, data=cordee.data.arrays(*task.data()), batch=512, drop_last=True, epochs=None, stop=Stop(steps=425), save=Save(epochs=None), callbacks=[T()])
s = Session(plan=Plan.parse("precision=bf16,compile=true"), device="cuda:0")
loop.run_job(job, s, out=Path(tempfile.mkdtemp()))
