/**
 * PLANTS_TEST_THOROUGH=1, which .ci/run sets, has every test do all that it can; otherwise those that repeat one thing many
 * times do it less often, so that a change is known within a minute or so.
 */
export const THOROUGH = process.env['PLANTS_TEST_THOROUGH'] === '1'
