import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Metrics } from '../../dist/telemetry/metrics.js'
import { readMetrics } from '../support/metrics.ts'

test('metrics: writes text, labels and values as the format requires', () => {
  const metrics = new Metrics()
  metrics.counter('a_total', 'A.', () => 3)
  metrics.gauge('b', 'B.', () => [
    [{ path: '/plants', other: 'x' }, -0.5],
    [{ path: '', other: '{},=' }, 1e21],
  ])
  metrics.gauge('nothing', 'No value.', () => undefined)
  metrics.gauge('empty', 'No labels.', () => [])
  assert.equal(
    metrics.render(),
    [
      '# HELP a_total A.',
      '# TYPE a_total counter',
      'a_total 3',
      '# HELP b B.',
      '# TYPE b gauge',
      'b{path="/plants",other="x"} -0.5',
      'b{path="",other="{},="} 1e+21',
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

test('metrics: values are read when rendered', () => {
  const metrics = new Metrics()
  let reads = 0
  metrics.counter('reads_total', 'Reads.', () => ++reads)
  assert.equal(reads, 0)
  assert.match(metrics.render(), /^reads_total 1$/m)
  assert.match(metrics.render(), /^reads_total 2$/m)
})
