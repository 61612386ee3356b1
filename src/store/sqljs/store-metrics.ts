/* What the store measures. */

import type { Compactor } from './compactor.ts'
import type { JournalWriter } from './journal-writer.ts'
import type { ResolvedOptions } from './store-options.ts'

const SYNC_BOUNDS_SECONDS = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
]
const BATCH_BOUNDS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]

/** Adds the store's metrics. `dataBytes` is undefined once the store is closed. */
export function addStoreMetrics(
  { metrics, maxDataBytes }: ResolvedOptions,
  journal: JournalWriter,
  compactor: Compactor,
  dataBytes: () => number | undefined,
) {
  const limit = 'PLANTS_MAX_DATA_BYTES: above it POST answers 507.'
  const length = 'Length of the journals not compacted yet.'
  metrics.gauge('plant_store_plants', 'Plants that are stored.', () => journal.plants)
  metrics.gauge('plant_store_data_bytes', 'Size of the database in memory.', dataBytes)
  metrics.gauge('plant_store_data_limit_bytes', limit, () => maxDataBytes)
  metrics.gauge('plant_store_journal_bytes', length, () => journal.lengthBytes)
  metrics.counter('plant_store_compactions_total', 'Compactions of the journals.', () =>
    Object.entries(compactor.results).map(([result, count]) => [{ result }, count]),
  )
  const [sync, batch] = ['Time until a batch was durable.', 'Plants made durable by one sync.']
  return {
    syncSeconds: metrics.histograms('plant_store_sync_seconds', sync, SYNC_BOUNDS_SECONDS)(),
    batchPlants: metrics.histograms('plant_store_batch_plants', batch, BATCH_BOUNDS)(),
  }
}
