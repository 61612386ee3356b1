/* What the store measures. */

import type { Histogram, Metrics, Reading } from '../../telemetry/metrics.ts'

/** What the metrics read each time they are asked for. */
interface StoreFigures {
  readonly maxDataBytes: number
  plants(): number
  /** Undefined once the store is closed. */
  dataBytes(): number | undefined
  journalBytes(): number
  compactions(): { readonly success: number; readonly failure: number }
}

export interface WriteMetrics {
  readonly syncSeconds: Histogram
  readonly batchPlants: Histogram
}

const SYNC_BOUNDS_SECONDS = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
]
const BATCH_BOUNDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]

/** Adds the store's metrics. The names keep the word "groups" for batches. */
export function addStoreMetrics(metrics: Metrics, figures: StoreFigures): WriteMetrics {
  const { maxDataBytes } = figures
  const gauge = (name: string, help: string, read: () => Reading): void =>
    metrics.gauge(`plant_store_${name}`, help, read)
  gauge('plants', 'Plants that are stored.', figures.plants)
  gauge('data_bytes', 'Size of the database in memory.', figures.dataBytes)
  gauge('data_limit_bytes', 'PLANTS_MAX_DATA_BYTES: above it POST answers 507.', () => maxDataBytes)
  gauge('journal_bytes', 'Length of the journals not compacted yet.', figures.journalBytes)
  metrics.counter('plant_store_compactions_total', 'Compactions of the journals.', () =>
    Object.entries(figures.compactions()).map(([result, count]) => [{ result }, count]),
  )
  const histogram = (name: string, help: string, bounds: readonly number[]): Histogram =>
    metrics.histograms(`plant_store_${name}`, help, bounds)()
  return {
    syncSeconds: histogram('sync_seconds', 'Time until a batch was durable.', SYNC_BOUNDS_SECONDS),
    batchPlants: histogram('group_plants', 'Plants made durable by one sync.', BATCH_BOUNDS),
  }
}
