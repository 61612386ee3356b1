import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { test } from 'node:test'
import { Metrics } from '../../dist/telemetry/metrics.js'
import { readMetrics } from '../support/metrics.ts'

test('metrics: writes text, labels and values as the format requires', () => {
  const metrics = new Metrics()
  metrics.counter('a_total', 'A help with a \\ and a\nnew line.', () => 3)
  metrics.gauge('b', 'B.', () => [
    [{ path: 'C:\\DIR\\"x"\n', other: 'ü' }, -0.5],
    [{ path: '', other: '{},=' }, 1e21],
  ])
  metrics.gauge('c', 'C.', () => Infinity)
  metrics.gauge('d', 'D.', () => -Infinity)
  metrics.gauge('e', 'E.', () => NaN)
  metrics.gauge('nothing', 'No value.', () => undefined)
  metrics.gauge('empty', 'No labels.', () => [])
  assert.equal(
    metrics.render(),
    [
      '# HELP a_total A help with a \\\\ and a\\nnew line.',
      '# TYPE a_total counter',
      'a_total 3',
      '# HELP b B.',
      '# TYPE b gauge',
      'b{path="C:\\\\DIR\\\\\\"x\\"\\n",other="ü"} -0.5',
      'b{path="",other="{},="} 1e+21',
      '# HELP c C.',
      '# TYPE c gauge',
      'c +Inf',
      '# HELP d D.',
      '# TYPE d gauge',
      'd -Inf',
      '# HELP e E.',
      '# TYPE e gauge',
      'e NaN',
      '',
    ].join('\n'),
  )
})

test('metrics: a bucket includes its bound and all smaller buckets', () => {
  const metrics = new Metrics()
  const make = metrics.histograms('h_seconds', 'H.', [0.5, 1, 2.5])
  const [one, two] = [make({ x: 'one' }), make({ x: 'two' })]
  for (const value of [0, 0.5, 0.500001, 1, 2, 2.5, 2.6, 1000]) one.observe(value)
  two.observe(0.25)
  const { samples, types } = readMetrics(metrics.render())
  assert.equal(types.get('h_seconds'), 'histogram')
  assert.deepEqual(
    [...samples],
    [
      ['h_seconds_bucket{x="one",le="0.5"}', 2],
      ['h_seconds_bucket{x="one",le="1"}', 4],
      ['h_seconds_bucket{x="one",le="2.5"}', 6],
      ['h_seconds_bucket{x="one",le="+Inf"}', 8],
      ['h_seconds_sum{x="one"}', 1009.100001],
      ['h_seconds_count{x="one"}', 8],
      ['h_seconds_bucket{x="two",le="0.5"}', 1],
      ['h_seconds_bucket{x="two",le="1"}', 1],
      ['h_seconds_bucket{x="two",le="2.5"}', 1],
      ['h_seconds_bucket{x="two",le="+Inf"}', 1],
      ['h_seconds_sum{x="two"}', 0.25],
      ['h_seconds_count{x="two"}', 1],
    ],
  )
})

test('metrics: values are read when rendered, and names are unique', () => {
  const metrics = new Metrics()
  let reads = 0
  metrics.counter('reads_total', 'Reads.', () => ++reads)
  assert.equal(reads, 0)
  assert.match(metrics.render(), /^reads_total 1$/m)
  assert.match(metrics.render(), /^reads_total 2$/m)
  assert.throws(() => metrics.gauge('reads_total', 'Again.', () => 0), /already/)
})

test('metrics: promtool reads escaped labels and special values', (t) => {
  const metrics = new Metrics()
  metrics.gauge('plant_store_hard', 'A \\ and a\nnew line.', () => [
    [{ path: '\\"\n' }, Infinity],
    [{ path: 'ü' }, NaN],
  ])
  const { status, stdout, stderr, error } = spawnSync('promtool', ['check', 'metrics'], {
    input: metrics.render(),
    encoding: 'utf8',
  })
  if (error) return t.skip('SKIPPED: promtool is missing (Debian: apt-get install prometheus)')
  assert.deepEqual([status, stdout, stderr], [0, '', ''])
})
