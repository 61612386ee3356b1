import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Histogram, Metrics } from '../../dist/telemetry/metrics.js'

test('metrics: a bucket includes its bound and all smaller buckets', () => {
  const metrics = new Metrics()
  const bounds = [0.5, 1, 2.5]
  const [one, two] = [new Histogram(bounds, { x: 'one' }), new Histogram(bounds, { x: 'two' })]
  metrics.add('histogram', 'h_seconds', 'H.', () => [...one.samples(), ...two.samples()])
  for (const value of [0, 0.5, 0.500001, 1, 2, 2.5, 2.6, 1000]) one.observe(value)
  two.observe(0.25)
  const text = `
    # HELP h_seconds H.
    # TYPE h_seconds histogram
    h_seconds_bucket{x="one",le="0.5"} 2
    h_seconds_bucket{x="one",le="1"} 4
    h_seconds_bucket{x="one",le="2.5"} 6
    h_seconds_bucket{x="one",le="+Inf"} 8
    h_seconds_sum{x="one"} 1009.100001
    h_seconds_count{x="one"} 8
    h_seconds_bucket{x="two",le="0.5"} 1
    h_seconds_bucket{x="two",le="1"} 1
    h_seconds_bucket{x="two",le="2.5"} 1
    h_seconds_bucket{x="two",le="+Inf"} 1
    h_seconds_sum{x="two"} 0.25
    h_seconds_count{x="two"} 1
    `
  assert.equal(metrics.render(), text.replace(/^ +/gm, '').trimStart())
})
