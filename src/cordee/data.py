"""`cordee.feed.data` and `cordee.feed.batch` under their public name."""

from cordee.feed.batch import draws as draws
from cordee.feed.cache.settings import Cache as Cache
from cordee.feed.data import Data as Data
from cordee.feed.data import arrays as arrays
from cordee.feed.data import as_data as as_data
from cordee.feed.data import as_source as as_source
from cordee.feed.data import dataset as dataset
from cordee.feed.data import digits as digits
from cordee.feed.data import idx as idx
from cordee.feed.data import npy as npy
from cordee.feed.data import npz as npz
from cordee.feed.data import text as text
from cordee.feed.exchange.mapreduce import map_reduce as map_reduce
from cordee.feed.exchange.stored import store as store
from cordee.feed.sources.csvfile import Dialect as Dialect
from cordee.feed.stream import stream as stream
from cordee.feed.tabular import csv as csv
from cordee.feed.tabular import parquet as parquet
from cordee.feed.tabular import sql as sql
from cordee.feed.tabular import table as table
